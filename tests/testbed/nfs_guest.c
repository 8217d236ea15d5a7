/* Loaded in front of User-mode Linux. Its kernel (6.1) knows the registers up to AVX only, and gives just those back to
   a process; PTRACE_SETREGSET wants all that the CPU has, so where it has more (AVX-512, AMX) the boot ends in a panic.
   This fills up with what the process has in its other registers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum {
    XSTATE = 0x202,         /* NT_X86_XSTATE */
    PRESENT = 512,          /* where the word lies that says which registers are there */
    LEGACY_AND_AVX = 7,     /* its bits for x87, SSE and AVX */
};

long ptrace(enum __ptrace_request request, ...) {
    static long (*next)(enum __ptrace_request, ...);
    static _Alignas(64) char all[1 << 16];
    va_list arguments;
    va_start(arguments, request);
    long process = va_arg(arguments, long), address = va_arg(arguments, long), data = va_arg(arguments, long);
    va_end(arguments);
    if (!next) next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || address != XSTATE) return next(request, process, address, data);

    const struct iovec *given = (const struct iovec *)data;
    struct iovec whole = {all, sizeof all};
    uint64_t known, present;
    long status = next(PTRACE_GETREGSET, process, address, &whole);
    if (status < 0) return status;
    if (given->iov_len >= whole.iov_len) return next(request, process, address, data);
    memcpy(&present, all + PRESENT, sizeof present);
    memcpy(all, given->iov_base, given->iov_len);
    memcpy(&known, all + PRESENT, sizeof known);
    present = (present & ~(uint64_t)LEGACY_AND_AVX) | (known & LEGACY_AND_AVX);
    memcpy(all + PRESENT, &present, sizeof present);
    return next(request, process, address, &whole);
}
