// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// filter is the BPF program that makes the kernel stop a thread at calls that may change files, and
// at no others: a stop at each of a Go program's many calls would make it ten times slower. See
// seccomp(2), SECCOMP_RET_TRACE.
func filter() []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equals = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		has    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		end    = unix.BPF_RET | unix.BPF_K
		number = 0  // in struct seccomp_data
		args   = 16 // the low half of the first one, 8 bytes each
	)
	program := []unix.SockFilter{{Code: load, K: number}}
	for nr, name := range names() {
		stop := []unix.SockFilter{{Code: end, K: unix.SECCOMP_RET_TRACE}}
		if at, opens := flagsOf[name]; opens {
			stop = []unix.SockFilter{
				{Code: load, K: args + 8*at},
				{Code: has, K: changes, Jf: 1},
				{Code: end, K: unix.SECCOMP_RET_TRACE},
				{Code: end, K: unix.SECCOMP_RET_ALLOW},
			}
		}

		program = append(program, unix.SockFilter{
			Code: equals,
			K:    uint32(nr),
			Jf:   uint8(len(stop)),
		})
		program = append(program, stop...)
	}

	return append(program, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
}

// install gives a thread that has just stopped at its exec the filter. Only the thread itself can
// take it, so it is made to do so: two system calls in place of its first instructions, which are
// restored afterwards.
func install(tid int) error {
	var before unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &before); err != nil {
		return err
	}
	start := registers(before)
	code := make([]byte, len(callInstruction))
	if _, err := unix.PtracePeekText(tid, uintptr(start.instruction()), code); err != nil {
		return err
	}
	if _, err := unix.PtracePokeText(tid, uintptr(start.instruction()), callInstruction); err != nil {
		return err
	}
	// struct sock_fprog and the program lie below the stack, where nothing is yet.
	program := filter()
	var data bytes.Buffer
	at := (start.stack() - 4096) &^ 15
	for _, part := range []any{uint64(len(program)), at + 16, program} {
		if err := binary.Write(&data, binary.NativeEndian, part); err != nil {
			return err
		}
	}

	if _, err := unix.PtracePokeData(tid, uintptr(at), data.Bytes()); err != nil {
		return err
	}
	for _, call := range [][]uint64{
		{unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0}, // else only root may
		{unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, at},
	} {
		r := start
		r.setCall(call[0])
		for i, argument := range call[1:] {
			r.setArgument(i, argument)
		}
		if err := step(tid, &r); err != nil {
			return err
		}
		if result := r.result(); result != 0 {
			return fmt.Errorf("cannot filter its system calls: %w", unix.Errno(-result))
		}
	}

	if _, err := unix.PtracePokeText(tid, uintptr(start.instruction()), code); err != nil {
		return err
	}
	return unix.PtraceSetRegs(tid, &before)
}

// step lets a thread take one instruction with the registers given, and gives back those it has
// then.
func step(tid int, r *registers) error {
	if err := unix.PtraceSetRegs(tid, (*unix.PtraceRegs)(r)); err != nil {
		return err
	}
	if err := unix.PtraceSingleStep(tid); err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(tid, &status, unix.WALL, nil); err != nil {
		return err
	}
	if !status.Stopped() || status.StopSignal() != unix.SIGTRAP {
		return fmt.Errorf("cannot filter its system calls: it got %v", status.StopSignal())
	}
	return unix.PtraceGetRegs(tid, (*unix.PtraceRegs)(r))
}
