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
