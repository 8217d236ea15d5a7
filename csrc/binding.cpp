// Python's side: checks every argument, releases the GIL, and turns faults into exceptions that name the argument.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blend.h"
#include "mapping.h"
#include "samples.h"

namespace py = pybind11;

namespace {

using nodecache::MappingFault;
using nodecache::Poll;
using nodecache::SampleFault;
using nodecache::Strided;

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::string text(const py::handle& object) { return py::cast<std::string>(py::str(object)); }

std::string type_name(const py::handle& object) { return Py_TYPE(object.ptr())->tp_name; }

// Runs work without the GIL. Signals are handled whenever the work asks; if a handler raises, its exception is raised.
template <class Work>
void without_gil(Work work) {
    PyThreadState* thread = PyEval_SaveThread();
    Poll poll{[](void* context) {
                  auto** own = static_cast<PyThreadState**>(context);
                  PyEval_RestoreThread(*own);
                  const bool raised = PyErr_CheckSignals() != 0;
                  *own = PyEval_SaveThread();
                  return raised;
              },
              &thread};
    try {
        work(poll);
    } catch (const nodecache::Stopped&) {
        PyEval_RestoreThread(thread);
        throw py::error_already_set();
    } catch (...) {
        PyEval_RestoreThread(thread);
        throw;
    }
    PyEval_RestoreThread(thread);
}

std::int64_t integer(const py::object& value, const char* name, std::int64_t least, std::int64_t most) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) {
        PyErr_Clear();
        throw py::type_error(std::string(name) + " is a " + type_name(value) + ": pass an integer");
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow || number < least || number > most)
        throw py::value_error(std::string(name) + " is " + text(index) + ": it must be from " + std::to_string(least) +
                              " to " + std::to_string(most));
    return number;
}

double real(const py::object& value, const char* name) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw py::type_error(std::string(name) + " is a " + type_name(value) + ": pass a number");
    }
    return number;
}

bool truth(const py::object& value, const char* name) {
    const int result = PyObject_IsTrue(value.ptr());
    if (result < 0) {
        PyErr_Clear();
        throw py::type_error(std::string(name) + " is a " + type_name(value) + ": pass True or False");
    }
    return result != 0;
}

template <class T>
bool usable_in_place(const py::array& array) {
    return array.dtype().equal(py::dtype::of<T>()) && (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) &&
           array.strides(0) % static_cast<py::ssize_t>(sizeof(T)) == 0;
}

// An argument that is only read. Arrays of the right type are used where they lie, with whatever stride; others are
// converted if no element changes its value by that.
template <class T>
struct Input {
    py::array array;
    Strided<T> view;

    Input(const py::object& value, const char* name) {
        const auto numpy = py::module_::import("numpy");
        try {
            array = numpy.attr("asarray")(value);
        } catch (py::error_already_set& error) {
            if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
            throw py::value_error(std::string(name) + " is no array: pass a 1-D array of " + text(py::dtype::of<T>()));
        }
        if (array.ndim() != 1)
            throw py::value_error(std::string(name) + " has " + std::to_string(array.ndim()) +
                                  " dimensions: pass a 1-D array");
        if (!usable_in_place<T>(array)) array = converted(array, name);
        view = {static_cast<const T*>(array.data()), array.shape(0),
                static_cast<std::ptrdiff_t>(array.strides(0) / static_cast<py::ssize_t>(sizeof(T)))};
    }

    static py::array converted(const py::array& array, const char* name) {
        const auto numpy = py::module_::import("numpy");
        const auto wanted = py::dtype::of<T>();
        if (std::string("biuf").find(array.dtype().kind()) == std::string::npos)
            throw py::type_error(std::string(name) + " has dtype " + text(array.dtype()) + ": pass an array of " +
                                 text(wanted));
        const auto quiet = numpy.attr("errstate")(py::arg("all") = "ignore");
        quiet.attr("__enter__")();
        py::array result = array.attr("astype")(wanted);
        const bool same = std::is_floating_point<T>::value ||
                          numpy.attr("array_equal")(result, array).template cast<bool>();
        quiet.attr("__exit__")(py::none(), py::none(), py::none());
        if (!same)
            throw py::value_error(std::string(name) + " has dtype " + text(array.dtype()) + " and values that " +
                                  text(wanted) + " cannot hold: pass an array of " + text(wanted));
        return result;
    }
};

// An argument that is filled: never converted, for the caller would not see a converted copy filled.
template <class T>
struct Output {
    py::array array;

    Output(const py::object& value, const char* name, std::int64_t size) {
        const std::string wanted = text(py::dtype::of<T>());
        const std::string remedy = ": pass numpy.zeros(" + std::to_string(size) + ", dtype=numpy." + wanted + ")";
        if (!py::isinstance<py::array>(value))
            throw py::type_error(std::string(name) + " is a " + type_name(value) + " and cannot be filled in place" + remedy);
        array = py::reinterpret_borrow<py::array>(value);
        if (!array.dtype().equal(py::dtype::of<T>()))
            throw py::type_error(std::string(name) + " has dtype " + text(array.dtype()) + " instead of " + wanted + remedy);
        if (array.ndim() != 1)
            throw py::value_error(std::string(name) + " has " + std::to_string(array.ndim()) + " dimensions" + remedy);
        if (array.shape(0) < size)
            throw py::value_error(std::string(name) + " has room for " + std::to_string(array.shape(0)) + " of " +
                                  std::to_string(size) + " samples" + remedy);
        if (!array.writeable()) throw py::value_error(std::string(name) + " is read-only" + remedy);
        if (!usable_in_place<T>(array)) throw py::value_error(std::string(name) + " is not aligned" + remedy);
    }
    T* data() { return static_cast<T*>(array.mutable_data()); }
    std::ptrdiff_t stride() const { return array.strides(0) / static_cast<py::ssize_t>(sizeof(T)); }
};

// dataset_index has 16 bits.
std::int32_t datasets(const py::object& value, std::int64_t given, const char* given_name) {
    const auto count = static_cast<std::int32_t>(
        integer(value, "num_datasets", 1, std::numeric_limits<std::int16_t>::max() + std::int64_t{1}));
    if (count > given)
        throw py::value_error("num_datasets is " + std::to_string(count) + ", but " + given_name + " has only " +
                              std::to_string(given) + " elements");
    return count;
}

std::string shortest(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", value);
    return buffer;
}

void build_blending_indices(const py::object& dataset_index, const py::object& dataset_sample_index,
                            const py::object& weights, const py::object& num_datasets, const py::object& size,
                            const py::object& verbose) {
    Input<double> weight(weights, "weights");
    const std::int32_t count = datasets(num_datasets, weight.view.size, "weights");
    const std::int64_t draws = integer(size, "size", 0, kInt64Max);
    Output<std::int16_t> index(dataset_index, "dataset_index", draws);
    Output<std::int64_t> sample(dataset_sample_index, "dataset_sample_index", draws);
    const bool loud = truth(verbose, "verbose");
    bool any = false;
    for (std::int32_t j = 0; j < count; ++j) {
        const double value = weight.view[j];
        if (!std::isfinite(value) || value < 0)
            throw py::value_error("weights[" + std::to_string(j) + "] is " + shortest(value) +
                                  ": weights must be finite and not negative");
        any = any || value > 0;
    }
    if (!any && draws > 0) throw py::value_error("weights are all zero: at least one must be positive");
    if (loud) py::print("> building indices for blended datasets ...");
    std::unique_ptr<double[]> dense;
    const double* data = weight.view.data;
    if (weight.view.stride != 1) {
        dense = std::make_unique<double[]>(count);
        for (std::int32_t j = 0; j < count; ++j) dense[j] = weight.view[j];
        data = dense.get();
    }
    if (draws > 0)
        without_gil([&](Poll& poll) {
            nodecache::blend(data, nullptr, count, draws, {index.data(), index.stride(), sample.data(), sample.stride()}, poll);
        });
    if (!loud) return;
    std::vector<std::int64_t> drawn(count);
    for (std::int64_t i = 0; i < draws; ++i) ++drawn[index.data()[i * index.stride()]];
    py::print(" > sample ratios:");
    for (std::int32_t j = 0; j < count; ++j)
        py::print("   dataset " + std::to_string(j) + ", input: " + shortest(data[j]) + ", achieved: " +
                  shortest(static_cast<double>(drawn[j]) / static_cast<double>(draws)));
}

void build_exhaustive_blending_indices(const py::object& dataset_index, const py::object& dataset_sample_index,
                                       const py::object& sizes, const py::object& num_datasets) {
    Input<std::int64_t> size(sizes, "sizes");
    const std::int32_t count = datasets(num_datasets, size.view.size, "sizes");
    std::int64_t total = 0;
    for (std::int32_t j = 0; j < count; ++j) {
        if (size.view[j] < 0)
            throw py::value_error("sizes[" + std::to_string(j) + "] is " + std::to_string(size.view[j]) +
                                  ": sizes must not be negative");
        if (__builtin_add_overflow(total, size.view[j], &total))
            throw py::value_error("sizes add up to more than 64 bits hold, at sizes[" + std::to_string(j) + "]");
    }
    Output<std::int16_t> index(dataset_index, "dataset_index", total);
    Output<std::int64_t> sample(dataset_sample_index, "dataset_sample_index", total);
    if (total == 0) return;
    auto weights = std::make_unique<double[]>(count);
    auto limits = std::make_unique<std::int64_t[]>(count);
    for (std::int32_t j = 0; j < count; ++j) {
        limits[j] = size.view[j];
        weights[j] = static_cast<double>(limits[j]) / static_cast<double>(total);
    }
    without_gil([&](Poll& poll) {
        nodecache::blend(weights.get(), limits.get(), count, total,
                         {index.data(), index.stride(), sample.data(), sample.stride()}, poll);
    });
}

template <class T>
py::object build_sample_idx(const py::object& sizes, const py::object& document_idx, const py::object& seq_length,
                            const py::object& num_epochs, const py::object& tokens_per_epoch,
                            const py::object& drop_last_partial_sequence, const py::object& add_extra_token_to_sequence) {
    Input<std::int32_t> size(sizes, "sizes");
    Input<std::int32_t> document(document_idx, "document_idx");
    const std::int64_t length = integer(seq_length, "seq_length", 2, kInt32Max);
    const std::int64_t epochs = integer(num_epochs, "num_epochs", 1, kInt32Max);
    const std::int64_t per_epoch = integer(tokens_per_epoch, "tokens_per_epoch", 0, kInt64Max);
    const bool drop = truth(drop_last_partial_sequence, "drop_last_partial_sequence");
    const std::int64_t extra = integer(add_extra_token_to_sequence, "add_extra_token_to_sequence", 0, 1);
    if (document.view.size == 0) throw py::value_error("document_idx is empty: pass at least one document");
    if (document.view.size > static_cast<std::int64_t>(std::numeric_limits<T>::max()))
        throw py::value_error("document_idx has more elements than int32 can number: use build_sample_idx_int64");
    const __int128 tokens = static_cast<__int128>(epochs) * per_epoch - extra;
    if (tokens < 0 && drop)
        throw py::value_error("tokens_per_epoch is 0: there must be at least the extra token");
    const __int128 samples = tokens < 0 ? 0 : drop ? tokens / length : (tokens + length - 1) / length;
    if (samples >= (std::int64_t{1} << 56))
        throw py::value_error("tokens_per_epoch is " + std::to_string(per_epoch) + ": the index would have no room in memory");
    const auto rows = static_cast<std::int64_t>(samples);
    py::array_t<T> result(std::vector<py::ssize_t>{rows + 1, 2});
    nodecache::SampleIndexResult done{};
    T* data = result.mutable_data();
    without_gil([&](Poll& poll) {
        done = nodecache::build_sample_index(size.view, document.view, length, extra, data, rows, poll);
    });
    const auto place = [&] { return "document_idx[" + std::to_string(done.document) + "]"; };
    switch (done.fault) {
        case SampleFault::none:
            break;
        case SampleFault::document_out_of_range:
            throw py::index_error(place() + " is " + std::to_string(document.view[done.document]) +
                                  ", but there are " + std::to_string(size.view.size) + " sizes");
        case SampleFault::negative_size:
            throw py::value_error("sizes[" + std::to_string(document.view[done.document]) + "] is negative, and " +
                                  place() + " refers to it");
        case SampleFault::too_few_tokens:
            throw py::value_error("tokens_per_epoch is " + std::to_string(per_epoch) + " in " + std::to_string(epochs) +
                                  " epochs, but the documents in document_idx have fewer tokens in all");
    }
    return std::move(result);
}

template <class Row>
py::object finished(nodecache::Mapping<Row>& mapping, int columns) {
    py::capsule owner(mapping.data, [](void* memory) { std::free(memory); });
    return py::array_t<Row>(std::vector<py::ssize_t>{mapping.rows, columns}, mapping.data, owner);
}

struct Report {
    Strided<std::int64_t> documents;
    const nodecache::MappingOptions& options;
    double probability;

    void begin(bool wide) const {
        const std::int64_t first = documents[0], last = documents[documents.size - 1];
        py::print(wide ? "    using uint64 for data mapping..." : "    using uint32 for data mapping...");
        py::print("    using:");
        line("number of documents:            ", documents.size - 1);
        py::print("     sentences range:                [" + std::to_string(first) + ", " + std::to_string(last) + ")");
        line("total number of sentences:      ", last - first);
        line("number of epochs:               ", options.epochs);
        py::print("     maximum number of samples:      " + std::to_string(options.most));
        line("maximum sequence length:        ", options.length);
        if (!options.blocks) {
            py::print("     short sequence probability:     " + shortest(probability));
            line("short sequence ration (1/prob): ", options.short_ratio);
        }
        line("seed:                           ", options.seed);
    }
    static void line(const char* what, std::int64_t value) { py::print("     " + (what + std::to_string(value))); }

    template <class Row>
    void end(const nodecache::Mapping<Row>& mapping) const {
        if (mapping.epochs < options.epochs)
            py::print("    reached " + std::to_string(mapping.rows) + " samples after " + std::to_string(mapping.epochs) +
                      " epochs ...");
        py::print("   number of empty documents: " + std::to_string(mapping.empty));
        py::print("   number of documents with one sentence: " + std::to_string(mapping.single));
        py::print("   number of documents with long sentences: " + std::to_string(mapping.lengthy));
        py::print("   will create mapping for " + std::to_string(mapping.rows) + " samples");
    }
};

template <class Row>
py::object mapping_of(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                      const nodecache::MappingOptions& options, const Report* report,
                      nodecache::Mapping<Row> (*build)(Strided<std::int64_t>, Strided<std::int32_t>,
                                                       const nodecache::MappingOptions&, Poll&)) {
    if (report) report->begin(sizeof(Row) == 8);
    nodecache::Mapping<Row> mapping;
    without_gil([&](Poll& poll) { mapping = build(documents, sizes, options, poll); });
    const auto place = [&](const char* array, std::int64_t k) { return std::string(array) + "[" + std::to_string(k) + "]"; };
    switch (mapping.fault) {
        case MappingFault::none:
            break;
        case MappingFault::sentence_out_of_range:
            throw py::index_error(place("docs", mapping.place) + " and the next are " +
                                  std::to_string(documents[mapping.place]) + " and " +
                                  std::to_string(documents[mapping.place + 1]) + ", but there are " +
                                  std::to_string(sizes.size) + " sizes");
        case MappingFault::negative_size:
            throw py::value_error("sizes has a negative element in document " + std::to_string(mapping.place));
        case MappingFault::negative_title:
            throw py::value_error(place("titles_sizes", mapping.place) + " is negative");
        case MappingFault::out_of_memory:
            throw std::bad_alloc();
    }
    py::object result = finished(mapping, options.blocks ? 4 : 3);
    if (report) report->end(mapping);
    if (mapping.rows == 0 && options.most > 0 &&
        PyErr_WarnEx(PyExc_UserWarning, "no document qualifies for the mapping: it is empty", 1) < 0)
        throw py::error_already_set();
    return result;
}

py::object mapping_of_either(const py::object& docs, const py::object& sizes, nodecache::MappingOptions& options,
                             double probability, const py::object& verbose) {
    Input<std::int64_t> documents(docs, "docs");
    Input<std::int32_t> size(sizes, "sizes");
    if (documents.view.size == 0) throw py::value_error("docs is empty: it must hold at least the first sentence's index");
    if (options.blocks && options.titles.size < documents.view.size - 1)
        throw py::value_error("titles_sizes has " + std::to_string(options.titles.size) + " elements for " +
                              std::to_string(documents.view.size - 1) + " documents");
    const Report report{documents.view, options, probability};
    const Report* loud = truth(verbose, "verbose") ? &report : nullptr;
    if (size.view.size > std::int64_t{std::numeric_limits<std::uint32_t>::max()})
        return mapping_of<std::uint64_t>(documents.view, size.view, options, loud, nodecache::build_mapping64);
    return mapping_of<std::uint32_t>(documents.view, size.view, options, loud, nodecache::build_mapping32);
}

nodecache::MappingOptions common_options(const py::object& num_epochs, const py::object& max_num_samples,
                                         const py::object& max_seq_length, const py::object& seed) {
    nodecache::MappingOptions options{};
    options.epochs = integer(num_epochs, "num_epochs", 1, kInt32Max);
    options.most = static_cast<std::uint64_t>(integer(max_num_samples, "max_num_samples", 0, kInt64Max));
    options.length = integer(max_seq_length, "max_seq_length", 2, kInt32Max);
    options.seed = integer(seed, "seed", 1, kInt32Max);
    return options;
}

py::object build_mapping(const py::object& docs, const py::object& sizes, const py::object& num_epochs,
                         const py::object& max_num_samples, const py::object& max_seq_length,
                         const py::object& short_seq_prob, const py::object& seed, const py::object& verbose,
                         const py::object& min_num_sent) {
    nodecache::MappingOptions options = common_options(num_epochs, max_num_samples, max_seq_length, seed);
    const double probability = real(short_seq_prob, "short_seq_prob");
    if (!(probability >= 0 && probability <= 1))
        throw py::value_error("short_seq_prob is " + shortest(probability) + ": it must be from 0 to 1");
    const double ratio = probability > 0 ? std::round(1 / probability) : 0;
    if (ratio > static_cast<double>(kInt32Max))
        throw py::value_error("short_seq_prob is " + shortest(probability) + ": it must be 0 or at least 1 / 2147483647");
    options.short_ratio = static_cast<std::int64_t>(ratio);
    options.fewest = integer(min_num_sent, "min_num_sent", -kInt32Max - 1, kInt32Max);
    return mapping_of_either(docs, sizes, options, probability, verbose);
}

py::object build_blocks_mapping(const py::object& docs, const py::object& sizes, const py::object& titles_sizes,
                                const py::object& num_epochs, const py::object& max_num_samples,
                                const py::object& max_seq_length, const py::object& seed, const py::object& verbose,
                                const py::object& use_one_sent_blocks) {
    nodecache::MappingOptions options = common_options(num_epochs, max_num_samples, max_seq_length, seed);
    Input<std::int32_t> titles(titles_sizes, "titles_sizes");
    options.blocks = true;
    options.titles = titles.view;
    options.fewest = truth(use_one_sent_blocks, "use_one_sent_blocks") ? 1 : 2;
    return mapping_of_either(docs, sizes, options, 0, verbose);
}

}  // namespace

PYBIND11_MODULE(NODECACHE_MODULE_NAME, m) {
    using py::arg;
    m.doc() = "Indices of Megatron datasets: blends, samples of fixed length, and samples of sentences.";
    m.def("build_blending_indices", &build_blending_indices, arg("dataset_index"), arg("dataset_sample_index"),
          arg("weights"), arg("num_datasets"), arg("size"), arg("verbose"));
    m.def("build_exhaustive_blending_indices", &build_exhaustive_blending_indices, arg("dataset_index"),
          arg("dataset_sample_index"), arg("sizes"), arg("num_datasets"));
    m.def("build_sample_idx_int32", &build_sample_idx<std::int32_t>, arg("sizes"), arg("document_idx"), arg("seq_length"),
          arg("num_epochs"), arg("tokens_per_epoch"), arg("drop_last_partial_sequence"),
          arg("add_extra_token_to_sequence"));
    m.def("build_sample_idx_int64", &build_sample_idx<std::int64_t>, arg("sizes"), arg("document_idx"), arg("seq_length"),
          arg("num_epochs"), arg("tokens_per_epoch"), arg("drop_last_partial_sequence"),
          arg("add_extra_token_to_sequence"));
    m.def("build_mapping", &build_mapping, arg("docs"), arg("sizes"), arg("num_epochs"), arg("max_num_samples"),
          arg("max_seq_length"), arg("short_seq_prob"), arg("seed"), arg("verbose"), arg("min_num_sent"));
    m.def("build_blocks_mapping", &build_blocks_mapping, arg("docs"), arg("sizes"), arg("titles_sizes"),
          arg("num_epochs"), arg("max_num_samples"), arg("max_seq_length"), arg("seed"), arg("verbose"),
          arg("use_one_sent_blocks"));
}
