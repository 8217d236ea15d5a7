// One step of gradient descent on weight^2: the smallest thing that deserves the name of a training step.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject* descend(PyObject*, PyObject* args) {
    double weight, rate;
    if (!PyArg_ParseTuple(args, "dd", &weight, &rate)) return nullptr;
    return PyFloat_FromDouble(weight - rate * 2.0 * weight);
}

static PyMethodDef methods[] = {{"descend", descend, METH_VARARGS, "The weight after one step."}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "train_step", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_train_step(void) { return PyModule_Create(&definition); }
