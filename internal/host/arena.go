//go:build cgo

// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

// Each thread that Go starts frees memory in C, for which the C library would give each of them an arena of its own, at four system calls
// and two pages: 2 % of an apply with nothing to do. Source: arena_get2 in malloc/arena.c of glibc; mallopt(3).

/*
#include <malloc.h>

#ifdef M_ARENA_MAX // of glibc
__attribute__((constructor)) static void one_arena(void) { mallopt(M_ARENA_MAX, 1); }
#endif
*/
import "C"
