//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

// #cgo LDFLAGS: -ldl
// #define _GNU_SOURCE
// #include <dlfcn.h>
// #include <signal.h>
// #include <stdlib.h>
// #include <sys/resource.h>
//
// // A crash of the library ends the process as it ends any program: Go's handlers would print all
// // goroutines and exit with 2.
// static void plain_crash(void) {
//	static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
//	const struct rlimit none = {0, 0};
//	for (unsigned i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], SIG_DFL);
//	setrlimit(RLIMIT_CORE, &none);
// }
//
// // The signatures of cuda.h, which are the same in all versions of CUDA since 2.0; cuGetErrorName
// // exists since 6.0. CUresult is an enum.
// static int call_init(void *f) { return ((int (*)(unsigned))f)(0); }
// static int call_count(void *f, int *count) { return ((int (*)(int *))f)(count); }
// static const char *call_name(void *f, int code) {
//	const char *name = NULL;
//	return ((int (*)(int, const char **))f)(code, &name) == 0 ? name : NULL;
// }
// static const char *file_of(void *f) {
//	Dl_info info;
//	return dladdr(f, &info) ? info.dli_fname : NULL;
// }
import "C"

import (
	"path"
	"runtime"
	"unsafe"

	"github.com/gpuadm/gpuadm/internal/host"
)

// callCUDA loads the first library that exists, and starts CUDA. It never returns from a library
// that hangs.
func callCUDA(libraries []string) host.CUDA {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.plain_crash()

	library, why := loadFirst(libraries)
	if library == nil {
		return host.CUDA{NoLibrary: why}
	}
	symbol := func(name string) unsafe.Pointer {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return C.dlsym(library, text)
	}

	start := symbol("cuInit")
	count := symbol("cuDeviceGetCount")
	if start == nil || count == nil {
		return host.CUDA{NoLibrary: cudaName + " has no cuInit"}
	}

	devices := C.int(0)
	code := C.call_init(start)
	if code == 0 {
		code = C.call_count(count, &devices)
	}
	answer := host.CUDA{
		Library: path.Clean(C.GoString(C.file_of(start))),
		Code:    int(code),
		Devices: int(devices),
	}
	if name := symbol("cuGetErrorName"); code != 0 && name != nil {
		answer.Name = C.GoString(C.call_name(name, code))
	}
	return answer
}

// loadFirst loads the first library that exists. If none does, it returns the first error: that of
// the loader's own search says most.
func loadFirst(libraries []string) (library unsafe.Pointer, why string) {
	for _, name := range libraries {
		text := C.CString(name)
		library = C.dlopen(text, C.RTLD_NOW)
		C.free(unsafe.Pointer(text))
		if library != nil {
			return library, ""
		}
		if message := C.dlerror(); message != nil && why == "" {
			why = C.GoString(message)
		}
	}
	return nil, why
}
