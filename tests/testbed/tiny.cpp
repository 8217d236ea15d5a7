// The smallest extension there is: add(a, b) through the bare C API, a fraction of a second to compile.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject* add(PyObject*, PyObject* args) {
    long a, b;
    if (!PyArg_ParseTuple(args, "ll", &a, &b)) return nullptr;
    return PyLong_FromLong(a + b);
}

static PyMethodDef methods[] = {{"add", add, METH_VARARGS, "The sum of two integers."}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&definition); }
