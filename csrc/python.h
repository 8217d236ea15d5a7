// Just as much of a layer over Python's C API as the binding needs: a compiler reads it in a fraction of the time that a
// general one takes, and that is most of what the first import of the helpers costs.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "poll.h"

namespace nodecache {

// Thrown where a Python exception has been set.
struct Raised {};

[[noreturn]] inline void raise(PyObject* type, const std::string& message) {
    PyErr_SetString(type, message.c_str());
    throw Raised{};
}

// A reference of one's own.
class Object {
public:
    Object() = default;
    // Takes over a new reference, or the exception that there is in its place.
    explicit Object(PyObject* fresh) : object_(fresh) {
        if (!fresh) throw Raised{};
    }
    Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Object& operator=(Object&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Object() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    Object attribute(const char* name) const { return Object(PyObject_GetAttrString(object_, name)); }
    template <class... Arguments>
    Object operator()(const Arguments&... arguments) const {
        return Object(PyObject_CallFunctionObjArgs(object_, bare(arguments)..., nullptr));
    }

private:
    static PyObject* bare(PyObject* argument) { return argument; }
    static PyObject* bare(const Object& argument) { return argument.get(); }

    PyObject* object_ = nullptr;
};

inline Object none() { return Object(Py_NewRef(Py_None)); }

inline Object module(const char* name) { return Object(PyImport_ImportModule(name)); }

inline std::string text(PyObject* object) {
    const Object string(PyObject_Str(object));
    const char* const characters = PyUnicode_AsUTF8(string.get());
    if (!characters) throw Raised{};
    return characters;
}

inline std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

inline bool truth_of(const Object& object) {
    const int result = PyObject_IsTrue(object.get());
    if (result < 0) throw Raised{};
    return result != 0;
}

// Writes a line to Python's stdout, wherever that leads at the moment.
inline void print(const std::string& line) {
    module("builtins").attribute("print")(Object(PyUnicode_FromStringAndSize(line.data(), static_cast<Py_ssize_t>(line.size()))));
}

// The memory of an object, which stays where it is for as long.
class Buffer {
public:
    Buffer() = default;
    Buffer(PyObject* object, int flags) {
        if (PyObject_GetBuffer(object, &view_, flags) != 0) throw Raised{};
    }
    Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(view_, other.view_);
        return *this;
    }
    ~Buffer() { PyBuffer_Release(&view_); }

    const Py_buffer* operator->() const { return &view_; }

private:
    Py_buffer view_{};
};

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
    } catch (const Stopped&) {
        PyEval_RestoreThread(thread);
        throw Raised{};
    } catch (...) {
        PyEval_RestoreThread(thread);
        throw;
    }
    PyEval_RestoreThread(thread);
}

// A function's name and those of its arguments.
template <std::size_t kCount>
struct Signature {
    const char* function;
    std::array<const char*, kCount> arguments;

    std::string documentation() const {
        std::string names;
        for (const char* name : arguments) names += (names.empty() ? "" : ", ") + std::string(name);
        return function + ("(" + names + ")\n--\n\n");
    }
};

template <class... Names>
constexpr Signature<sizeof...(Names)> signature(const char* function, Names... arguments) {
    return {function, {arguments...}};
}

template <auto kFunction, const auto& kSignature, std::size_t... kPlaces>
PyObject* call(PyObject* positional, PyObject* named, std::index_sequence<kPlaces...>) {
    constexpr std::size_t kCount = sizeof...(kPlaces);
    const char* names[] = {kSignature.arguments[kPlaces]..., nullptr};
    PyObject* values[kCount] = {};
    try {
        const std::string format = std::string(kCount, 'O') + ":" + kSignature.function;
        if (!PyArg_ParseTupleAndKeywords(positional, named, format.c_str(), const_cast<char**>(names), &values[kPlaces]...))
            return nullptr;
        return kFunction(values[kPlaces]...).release();
    } catch (const Raised&) {
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// The method for a function of objects that returns an Object.
template <auto kFunction, const auto& kSignature>
PyMethodDef method() {
    static const std::string documentation = kSignature.documentation();
    const PyCFunctionWithKeywords function = [](PyObject*, PyObject* positional, PyObject* named) {
        return call<kFunction, kSignature>(positional, named,
                                           std::make_index_sequence<std::tuple_size_v<decltype(kSignature.arguments)>>());
    };
    return {kSignature.function, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
            METH_VARARGS | METH_KEYWORDS, documentation.c_str()};
}

}  // namespace nodecache
