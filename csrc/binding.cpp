// Python's side: checks every argument, releases the GIL, and turns faults into exceptions that name the argument.
#include "python.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "blend.h"
#include "mapping.h"
#include "samples.h"

namespace nodecache {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void raise_type(const std::string& message) { raise(PyExc_TypeError, message); }
[[noreturn]] void raise_value(const std::string& message) { raise(PyExc_ValueError, message); }

// Says what to pass, in place of an exception of a kind by which an object says that it is none. Others are raised as they are.
[[noreturn]] void instead_of(PyObject* kind, PyObject* value, const char* name, const char* wanted) {
    if (!PyErr_ExceptionMatches(kind) && !PyErr_ExceptionMatches(PyExc_TypeError)) throw Raised{};
    raise_type(std::string(name) + " is a " + type_name(value) + ": pass " + wanted);
}

std::int64_t integer(PyObject* value, const char* name, std::int64_t least, std::int64_t most) {
    PyObject* const whole = PyNumber_Index(value);
    if (!whole) instead_of(PyExc_TypeError, value, name, "an integer");
    const Object index(whole);
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
    if (overflow || number < least || number > most)
        raise_value(std::string(name) + " is " + text(index.get()) + ": it must be from " + std::to_string(least) + " to " +
                    std::to_string(most));
    return number;
}

double real(PyObject* value, const char* name) {
    const double number = PyFloat_AsDouble(value);
    if (number == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) instead_of(PyExc_TypeError, value, name, "a number");
        PyErr_Clear();
        return std::numeric_limits<double>::infinity();
    }
    return number;
}

bool truth(PyObject* value, const char* name) {
    const int result = PyObject_IsTrue(value);
    if (result < 0) instead_of(PyExc_ValueError, value, name, "True or False");
    return result != 0;
}

// An element's type, as numpy names it.
template <class T>
constexpr const char* kName = nullptr;
template <>
constexpr const char* kName<std::int16_t> = "int16";
template <>
constexpr const char* kName<std::int32_t> = "int32";
template <>
constexpr const char* kName<std::uint32_t> = "uint32";
template <>
constexpr const char* kName<std::int64_t> = "int64";
template <>
constexpr const char* kName<std::uint64_t> = "uint64";
template <>
constexpr const char* kName<double> = "float64";

template <class T>
Object dtype() {
    return module("numpy").attribute("dtype")(Object(PyUnicode_FromString(kName<T>)));
}

template <class T>
bool has_dtype(const Object& array) {
    return truth_of(Object(PyObject_RichCompare(array.attribute("dtype").get(), dtype<T>().get(), Py_EQ)));
}

std::string dtype_name(const Object& array) { return text(array.attribute("dtype").get()); }

std::int64_t dimensions(const Object& array) { return PyLong_AsLongLong(array.attribute("ndim").get()); }

// The memory of a one-dimensional array of T.
template <class T>
struct Elements {
    Buffer buffer;

    Elements() = default;
    explicit Elements(const Object& array) : buffer(array.get(), PyBUF_STRIDES) {}
    bool usable_in_place() const {
        return reinterpret_cast<std::uintptr_t>(buffer->buf) % alignof(T) == 0 &&
               buffer->strides[0] % static_cast<Py_ssize_t>(sizeof(T)) == 0;
    }
    T* data() const { return static_cast<T*>(buffer->buf); }
    std::int64_t size() const { return buffer->shape[0]; }
    std::ptrdiff_t stride() const { return buffer->strides[0] / static_cast<Py_ssize_t>(sizeof(T)); }
};

// Calls a function of numpy's that is not to warn of what it converts.
template <class... Arguments>
Object quietly(const Object& function, const Arguments&... arguments) {
    const Object nothing(PyTuple_New(0)), all(Py_BuildValue("{ss}", "all", "ignore"));
    const Object quiet(PyObject_Call(module("numpy").attribute("errstate").get(), nothing.get(), all.get()));
    return quiet(function)(arguments...);
}

// An argument that is only read. Arrays of the right type are used where they lie, with whatever stride; others are
// converted if no element changes its value by that.
template <class T>
struct Input {
    Elements<T> elements;
    Strided<T> view;

    Input(PyObject* value, const char* name) {
        const Object array = as_array(value, name);
        const bool right = has_dtype<T>(array);
        if (right) elements = Elements<T>(array);
        if (!right || !elements.usable_in_place()) elements = Elements<T>(converted(array, name));
        view = {elements.data(), elements.size(), elements.stride()};
    }

    static Object as_array(PyObject* value, const char* name) {
        const Object asarray = module("numpy").attribute("asarray");
        PyObject* const found = PyObject_CallOneArg(asarray.get(), value);
        if (!found && !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_TypeError)) throw Raised{};
        if (!found) raise_value(std::string(name) + " is no array: pass a 1-D array of " + kName<T>);
        Object array(found);
        const std::int64_t count = dimensions(array);
        if (count != 1)
            raise_value(std::string(name) + " has " + std::to_string(count) + " dimensions: pass a 1-D array");
        return array;
    }

    static Object converted(const Object& array, const char* name) {
        const std::string kind = text(array.attribute("dtype").attribute("kind").get());
        if (std::string("biuf").find(kind) == std::string::npos)
            raise_type(std::string(name) + " has dtype " + dtype_name(array) + ": pass an array of " + kName<T>);
        Object result = quietly(array.attribute("astype"), dtype<T>());
        if (!std::is_floating_point<T>::value &&
            !truth_of(quietly(module("numpy").attribute("array_equal"), result, array)))
            raise_value(std::string(name) + " has dtype " + dtype_name(array) + " and values that " + kName<T> +
                        " cannot hold: pass an array of " + kName<T>);
        return result;
    }
};

// An argument that is filled: never converted, for the caller would not see a converted copy filled.
template <class T>
struct Output : Elements<T> {
    Output(PyObject* value, const char* name, std::int64_t size) : Elements<T>(checked(value, name, size)) {
        const std::string remedy = instead(size);
        if (this->size() < size)
            raise_value(std::string(name) + " has room for " + std::to_string(this->size()) + " of " + std::to_string(size) +
                        " samples" + remedy);
        if (this->buffer->readonly) raise_value(std::string(name) + " is read-only" + remedy);
        if (!this->usable_in_place()) raise_value(std::string(name) + " is not aligned" + remedy);
    }

    static std::string instead(std::int64_t size) {
        return ": pass numpy.zeros(" + std::to_string(size) + ", dtype=numpy." + kName<T> + ")";
    }

    static Object checked(PyObject* value, const char* name, std::int64_t size) {
        const int is_array = PyObject_IsInstance(value, module("numpy").attribute("ndarray").get());
        if (is_array < 0) throw Raised{};
        if (!is_array)
            raise_type(std::string(name) + " is a " + type_name(value) + " and cannot be filled in place" + instead(size));
        // As numpy sees it: a subclass may say anything of itself.
        Object array = module("numpy").attribute("asarray")(value);
        if (!has_dtype<T>(array))
            raise_type(std::string(name) + " has dtype " + dtype_name(array) + " instead of " + kName<T> + instead(size));
        const std::int64_t count = dimensions(array);
        if (count != 1) raise_value(std::string(name) + " has " + std::to_string(count) + " dimensions" + instead(size));
        return array;
    }
};

// dataset_index has 16 bits.
std::int32_t datasets(PyObject* value, std::int64_t given, const char* given_name) {
    const auto count = static_cast<std::int32_t>(
        integer(value, "num_datasets", 1, std::numeric_limits<std::int16_t>::max() + std::int64_t{1}));
    if (count > given)
        raise_value("num_datasets is " + std::to_string(count) + ", but " + given_name + " has only " +
                    std::to_string(given) + " elements");
    return count;
}

std::string shortest(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", value);
    return buffer;
}

Object build_blending_indices(PyObject* dataset_index, PyObject* dataset_sample_index,
                              PyObject* weights, PyObject* num_datasets, PyObject* size,
                              PyObject* verbose) {
    Input<double> weight(weights, "weights");
    const std::int32_t count = datasets(num_datasets, weight.view.size, "weights");
    const std::int64_t draws = integer(size, "size", 0, kInt64Max);
    Output<std::int16_t> index(dataset_index, "dataset_index", draws);
    Output<std::int64_t> sample(dataset_sample_index, "dataset_sample_index", draws);
    const bool loud = truth(verbose, "verbose");
    if (loud) print("> building indices for blended datasets ...");
    bool any = false;
    for (std::int32_t j = 0; j < count; ++j) {
        const double value = weight.view[j];
        if (!std::isfinite(value) || value < 0)
            raise_value("weights[" + std::to_string(j) + "] is " + shortest(value) +
                        ": weights must be finite and not negative");
        any = any || value > 0;
    }
    if (!any && draws > 0) raise_value("weights are all zero: at least one must be positive");
    std::unique_ptr<double[]> dense;
    const double* data = weight.view.data;
    if (weight.view.stride != 1) {
        dense = std::make_unique<double[]>(count);
        for (std::int32_t j = 0; j < count; ++j) dense[j] = weight.view[j];
        data = dense.get();
    }
    if (draws > 0)
        without_gil([&](Poll& poll) {
            blend(data, nullptr, count, draws, {index.data(), index.stride(), sample.data(), sample.stride()}, poll);
        });
    if (!loud) return none();
    std::vector<std::int64_t> drawn(count);
    without_gil([&](Poll& poll) {
        constexpr std::int64_t kPart = 1 << 16;
        for (std::int64_t i = 0; i < draws; i += kPart) {
            for (std::int64_t k = i; k < std::min(draws, i + kPart); ++k) {
                // Where outputs overlap, or another thread writes to them, anything may be there.
                const std::int16_t dataset = index.data()[k * index.stride()];
                if (dataset >= 0 && dataset < count) ++drawn[dataset];
            }
            poll.spend(kPart);
        }
    });
    print(" > sample ratios:");
    for (std::int32_t j = 0; j < count; ++j)
        print("   dataset " + std::to_string(j) + ", input: " + shortest(data[j]) + ", achieved: " +
              shortest(static_cast<double>(drawn[j]) / static_cast<double>(draws)));
    return none();
}

Object build_exhaustive_blending_indices(PyObject* dataset_index, PyObject* dataset_sample_index,
                                         PyObject* sizes, PyObject* num_datasets) {
    Input<std::int64_t> size(sizes, "sizes");
    const std::int32_t count = datasets(num_datasets, size.view.size, "sizes");
    std::int64_t total = 0;
    for (std::int32_t j = 0; j < count; ++j) {
        if (size.view[j] < 0)
            raise_value("sizes[" + std::to_string(j) + "] is " + std::to_string(size.view[j]) +
                        ": sizes must not be negative");
        if (__builtin_add_overflow(total, size.view[j], &total))
            raise_value("sizes add up to more than 64 bits hold, at sizes[" + std::to_string(j) + "]");
    }
    Output<std::int16_t> index(dataset_index, "dataset_index", total);
    Output<std::int64_t> sample(dataset_sample_index, "dataset_sample_index", total);
    if (total == 0) return none();
    auto weights = std::make_unique<double[]>(count);
    auto limits = std::make_unique<std::int64_t[]>(count);
    for (std::int32_t j = 0; j < count; ++j) {
        limits[j] = size.view[j];
        weights[j] = static_cast<double>(limits[j]) / static_cast<double>(total);
    }
    without_gil([&](Poll& poll) {
        blend(weights.get(), limits.get(), count, total,
                         {index.data(), index.stride(), sample.data(), sample.stride()}, poll);
    });
    return none();
}

template <class T>
Object build_sample_idx(PyObject* sizes, PyObject* document_idx, PyObject* seq_length,
                        PyObject* num_epochs, PyObject* tokens_per_epoch,
                        PyObject* drop_last_partial_sequence, PyObject* add_extra_token_to_sequence) {
    Input<std::int32_t> size(sizes, "sizes");
    Input<std::int32_t> document(document_idx, "document_idx");
    const std::int64_t length = integer(seq_length, "seq_length", 2, kInt32Max);
    const std::int64_t epochs = integer(num_epochs, "num_epochs", 1, kInt32Max);
    const std::int64_t per_epoch = integer(tokens_per_epoch, "tokens_per_epoch", 0, kInt64Max);
    const bool drop = truth(drop_last_partial_sequence, "drop_last_partial_sequence");
    const std::int64_t extra = integer(add_extra_token_to_sequence, "add_extra_token_to_sequence", 0, 1);
    if (document.view.size == 0) raise_value("document_idx is empty: pass at least one document");
    if (document.view.size > static_cast<std::int64_t>(std::numeric_limits<T>::max()))
        raise_value("document_idx has more elements than int32 can number: use build_sample_idx_int64");
    const __int128 tokens = static_cast<__int128>(epochs) * per_epoch - extra;
    if (tokens < 0 && drop)
        raise_value("tokens_per_epoch is 0: there must be at least the extra token");
    const __int128 samples = tokens < 0 ? 0 : drop ? tokens / length : (tokens + length - 1) / length;
    if (samples >= (std::int64_t{1} << 56))
        raise_value("tokens_per_epoch is " + std::to_string(per_epoch) + ": the index would have no room in memory");
    const auto rows = static_cast<std::int64_t>(samples);
    const Object shape(Py_BuildValue("LL", static_cast<long long>(rows + 1), 2LL));
    Object result = module("numpy").attribute("empty")(shape, dtype<T>());
    const Buffer memory(result.get(), PyBUF_CONTIG);
    SampleIndexResult done{};
    T* const data = static_cast<T*>(memory->buf);
    without_gil([&](Poll& poll) {
        done = build_sample_index(size.view, document.view, length, extra, data, rows, poll);
    });
    const auto place = [&] { return "document_idx[" + std::to_string(done.document) + "]"; };
    switch (done.fault) {
        case SampleFault::none:
            break;
        case SampleFault::document_out_of_range:
            raise(PyExc_IndexError, place() + " is " + std::to_string(document.view[done.document]) +
                  ", but there are " + std::to_string(size.view.size) + " sizes");
        case SampleFault::negative_size:
            raise_value("sizes[" + std::to_string(document.view[done.document]) + "] is negative, and " +
                        place() + " refers to it");
        case SampleFault::too_few_tokens:
            raise_value("tokens_per_epoch is " + std::to_string(per_epoch) + " in " + std::to_string(epochs) +
                        " epochs, but the documents in document_idx have fewer tokens in all");
    }
    return result;
}

// The mapping's memory as an array, which frees it at its end.
template <class Row>
Object finished(const Mapping<Row>& mapping, int columns) {
    PyObject* const keeper = PyCapsule_New(mapping.data, nullptr, [](PyObject* capsule) {
        std::free(PyCapsule_GetPointer(capsule, nullptr));
    });
    if (!keeper) std::free(mapping.data);
    const Object owner(keeper), kind = dtype<Row>().attribute("str"), nothing(PyTuple_New(0));
    const Object interface(Py_BuildValue("{sis(Li)sOs(KO)}", "version", 3, "shape", static_cast<long long>(mapping.rows),
                                         columns, "typestr", kind.get(), "data",
                                         static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(mapping.data)),
                                         Py_False));
    const Object about(Py_BuildValue("{sOsO}", "__array_interface__", interface.get(), "owner", owner.get()));
    const Object holder(PyObject_Call(module("types").attribute("SimpleNamespace").get(), nothing.get(), about.get()));
    return module("numpy").attribute("asarray")(holder);
}

struct Report {
    Strided<std::int64_t> documents;
    const MappingOptions& options;
    double probability;

    void begin(bool wide) const {
        const std::int64_t first = documents[0], last = documents[documents.size - 1];
        print(wide ? "    using uint64 for data mapping..." : "    using uint32 for data mapping...");
        print("    using:");
        line("number of documents:            ", documents.size - 1);
        print("     sentences range:                [" + std::to_string(first) + ", " + std::to_string(last) + ")");
        line("total number of sentences:      ",
             static_cast<std::int64_t>(static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first)));
        line("number of epochs:               ", options.epochs);
        print("     maximum number of samples:      " + std::to_string(options.most));
        line("maximum sequence length:        ", options.length);
        if (!options.blocks) {
            print("     short sequence probability:     " + shortest(probability));
            line("short sequence ration (1/prob): ", options.short_ratio);
        }
        line("seed:                           ", options.seed);
    }
    static void line(const char* what, std::int64_t value) { print("     " + (what + std::to_string(value))); }

    template <class Row>
    void end(const Mapping<Row>& mapping) const {
        if (mapping.epochs < options.epochs)
            print("    reached " + std::to_string(mapping.rows) + " samples after " + std::to_string(mapping.epochs) +
                  " epochs ...");
        print("   number of empty documents: " + std::to_string(mapping.empty));
        print("   number of documents with one sentence: " + std::to_string(mapping.single));
        print("   number of documents with long sentences: " + std::to_string(mapping.lengthy));
        print("   will create mapping for " + std::to_string(mapping.rows) + " samples");
    }
};

template <class Row>
Object mapping_of(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                  const MappingOptions& options, const Report* report,
                  Mapping<Row> (*build)(Strided<std::int64_t>, Strided<std::int32_t>,
                  const MappingOptions&, Poll&)) {
    if (report) report->begin(sizeof(Row) == 8);
    Mapping<Row> mapping;
    without_gil([&](Poll& poll) { mapping = build(documents, sizes, options, poll); });
    const auto place = [&](const char* array, std::int64_t k) { return std::string(array) + "[" + std::to_string(k) + "]"; };
    switch (mapping.fault) {
        case MappingFault::none:
            break;
        case MappingFault::sentence_out_of_range:
            raise(PyExc_IndexError, place("docs", mapping.place) + " and the next are " +
                  std::to_string(documents[mapping.place]) + " and " +
                  std::to_string(documents[mapping.place + 1]) + ", but there are " +
                  std::to_string(sizes.size) + " sizes");
        case MappingFault::negative_size:
            raise_value("sizes has a negative element in document " + std::to_string(mapping.place));
        case MappingFault::negative_title:
            raise_value(place("titles_sizes", mapping.place) + " is negative");
        case MappingFault::out_of_memory:
            throw std::bad_alloc();
    }
    Object result = finished(mapping, options.blocks ? 4 : 3);
    if (report) report->end(mapping);
    if (mapping.rows == 0 && options.most > 0 &&
        PyErr_WarnEx(PyExc_UserWarning, "no document qualifies for the mapping: it is empty", 1) < 0)
        throw Raised{};
    return result;
}

Object mapping_of_either(PyObject* docs, PyObject* sizes, MappingOptions& options,
                         double probability, PyObject* verbose) {
    Input<std::int64_t> documents(docs, "docs");
    Input<std::int32_t> size(sizes, "sizes");
    if (documents.view.size == 0) raise_value("docs is empty: it must hold at least the first sentence's index");
    if (options.blocks && options.titles.size < documents.view.size - 1)
        raise_value("titles_sizes has " + std::to_string(options.titles.size) + " elements for " +
                    std::to_string(documents.view.size - 1) + " documents");
    const Report report{documents.view, options, probability};
    const Report* loud = truth(verbose, "verbose") ? &report : nullptr;
    if (size.view.size > std::int64_t{std::numeric_limits<std::uint32_t>::max()})
        return mapping_of<std::uint64_t>(documents.view, size.view, options, loud, build_mapping64);
    return mapping_of<std::uint32_t>(documents.view, size.view, options, loud, build_mapping32);
}

MappingOptions common_options(PyObject* num_epochs, PyObject* max_num_samples,
                              PyObject* max_seq_length, PyObject* seed) {
    MappingOptions options{};
    options.epochs = integer(num_epochs, "num_epochs", 1, kInt32Max);
    options.most = static_cast<std::uint64_t>(integer(max_num_samples, "max_num_samples", 0, kInt64Max));
    options.length = integer(max_seq_length, "max_seq_length", 2, kInt32Max);
    options.seed = integer(seed, "seed", 1, kInt32Max);
    return options;
}

Object build_mapping(PyObject* docs, PyObject* sizes, PyObject* num_epochs,
                     PyObject* max_num_samples, PyObject* max_seq_length,
                     PyObject* short_seq_prob, PyObject* seed, PyObject* verbose,
                     PyObject* min_num_sent) {
    MappingOptions options = common_options(num_epochs, max_num_samples, max_seq_length, seed);
    const double probability = real(short_seq_prob, "short_seq_prob");
    if (!(probability >= 0 && probability <= 1))
        raise_value("short_seq_prob is " + shortest(probability) + ": it must be from 0 to 1");
    const double ratio = probability > 0 ? std::round(1 / probability) : 0;
    if (ratio > static_cast<double>(kInt32Max))
        raise_value("short_seq_prob is " + shortest(probability) + ": it must be 0 or at least 1 / 2147483647");
    options.short_ratio = static_cast<std::int64_t>(ratio);
    options.fewest = integer(min_num_sent, "min_num_sent", -kInt32Max - 1, kInt32Max);
    return mapping_of_either(docs, sizes, options, probability, verbose);
}

Object build_blocks_mapping(PyObject* docs, PyObject* sizes, PyObject* titles_sizes,
                            PyObject* num_epochs, PyObject* max_num_samples,
                            PyObject* max_seq_length, PyObject* seed, PyObject* verbose,
                            PyObject* use_one_sent_blocks) {
    MappingOptions options = common_options(num_epochs, max_num_samples, max_seq_length, seed);
    Input<std::int32_t> titles(titles_sizes, "titles_sizes");
    options.blocks = true;
    options.titles = titles.view;
    options.fewest = truth(use_one_sent_blocks, "use_one_sent_blocks") ? 1 : 2;
    return mapping_of_either(docs, sizes, options, 0, verbose);
}

constexpr auto kBlend = signature("build_blending_indices", "dataset_index", "dataset_sample_index", "weights",
                                  "num_datasets", "size", "verbose");
constexpr auto kExhaust = signature("build_exhaustive_blending_indices", "dataset_index", "dataset_sample_index", "sizes",
                                    "num_datasets");
constexpr auto kSamples32 = signature("build_sample_idx_int32", "sizes", "document_idx", "seq_length", "num_epochs",
                                      "tokens_per_epoch", "drop_last_partial_sequence", "add_extra_token_to_sequence");
constexpr auto kSamples64 = signature("build_sample_idx_int64", "sizes", "document_idx", "seq_length", "num_epochs",
                                      "tokens_per_epoch", "drop_last_partial_sequence", "add_extra_token_to_sequence");
constexpr auto kMapping = signature("build_mapping", "docs", "sizes", "num_epochs", "max_num_samples", "max_seq_length",
                                    "short_seq_prob", "seed", "verbose", "min_num_sent");
constexpr auto kBlocks = signature("build_blocks_mapping", "docs", "sizes", "titles_sizes", "num_epochs", "max_num_samples",
                                   "max_seq_length", "seed", "verbose", "use_one_sent_blocks");

PyMethodDef methods[] = {method<build_blending_indices, kBlend>(),
                         method<build_exhaustive_blending_indices, kExhaust>(),
                         method<build_sample_idx<std::int32_t>, kSamples32>(),
                         method<build_sample_idx<std::int64_t>, kSamples64>(),
                         method<build_mapping, kMapping>(),
                         method<build_blocks_mapping, kBlocks>(),
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "helpers",
                          "Indices of Megatron datasets: blends, samples of fixed length, and samples of sentences.",
                          0,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace nodecache

#define NODECACHE_JOIN(prefix, name) prefix##name
#define NODECACHE_INIT(name) NODECACHE_JOIN(PyInit_, name)

PyMODINIT_FUNC NODECACHE_INIT(NODECACHE_MODULE_NAME)() { return PyModuleDef_Init(&nodecache::definition); }
