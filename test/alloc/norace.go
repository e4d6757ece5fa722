// SPDX-License-Identifier: Apache-2.0

//go:build !race

package alloc

// slack is 1: see race.go.
const slack = 1
