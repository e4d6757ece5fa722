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
// // The library's own crash ends the process as that of any program: Go's handlers would print all goroutines and exit with 2.
// static void plain_crash(void) {
//	static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
//	const struct rlimit none = {0, 0};
//	for (unsigned i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], SIG_DFL);
//	setrlimit(RLIMIT_CORE, &none);
// }
//
// // The signatures of cuda.h, which differ between no versions of CUDA since 2.0; cuGetErrorName is there since 6.0. CUresult is an enum.
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

// callCUDA loads the first library that there is, and starts CUDA. It never comes back from a
// library that hangs.
func callCUDA(libraries []string) host.CUDA {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.plain_crash()
	var got host.CUDA
	var library unsafe.Pointer
	for _, name := range libraries {
		text := C.CString(name)
		library = C.dlopen(text, C.RTLD_NOW)
		C.free(unsafe.Pointer(text))
		if library != nil {
			break
		}
		if why := C.dlerror(); why != nil && got.NoLibrary == "" { // the loader's own search says most
			got.NoLibrary = C.GoString(why)
		}
	}
	if library == nil {
		return got
	}
	symbol := func(name string) unsafe.Pointer {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return C.dlsym(library, text)
	}
	start, count := symbol("cuInit"), symbol("cuDeviceGetCount")
	if got.NoLibrary = ""; start == nil || count == nil {
		got.NoLibrary = cudaName + " has no cuInit"
		return got
	}
	got.Library = path.Clean(C.GoString(C.file_of(start)))
	devices := C.int(0)
	code := C.call_init(start)
	if code == 0 {
		code = C.call_count(count, &devices)
	}
	got.Code, got.Devices = int(code), int(devices)
	if name := symbol("cuGetErrorName"); code != 0 && name != nil {
		got.Name = C.GoString(C.call_name(name, code))
	}
	return got
}
