// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestTogether: what is the same of several GPUs is one sentence.
func TestTogether(t *testing.T) {
	found := []doctor.Found{
		{Object: "0000:17:00.0", What: "GPU 0000:17:00.0 is in MIG mode and has no instance"},
		{Object: "0000:3a:00.0", What: "GPU 0000:3a:00.0 is in MIG mode and has no instance"},
		{Object: "0000:3a:00.0", What: "GPU 0000:3a:00.0 reported Xid 79"},
		{What: "the module nvidia is not loaded"},
	}
	check.List(t, together(found), []string{
		"each of 2 GPUs is in MIG mode and has no instance: 0000:17:00.0, 0000:3a:00.0",
		"GPU 0000:3a:00.0 reported Xid 79",
		"the module nvidia is not loaded",
	}, "sentences:")
}

// TestTogetherHidesNoObject: doctor repeats a sentence for each file, package or unit that it holds
// for. It prints a sentence without an object once.
func TestTogetherHidesNoObject(t *testing.T) {
	found := []doctor.Found{
		{Object: "/dev/nvidia0", What: "/dev/nvidia0 is not there"},
		{Object: "/dev/nvidia1", What: "/dev/nvidia1 is not there"},
		{Object: "/dev/nvidia1", What: "/dev/nvidia1 is not there"},
		{Object: "a.service", What: "the disk is full"},
		{Object: "b.service", What: "the disk is full"},
	}
	check.List(t, together(found), []string{
		"/dev/nvidia0 is not there",
		"/dev/nvidia1 is not there",
		"the disk is full",
	}, "sentences:")
}
