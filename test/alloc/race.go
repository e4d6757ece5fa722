// SPDX-License-Identifier: Apache-2.0

//go:build race

package alloc

// slack is how many times as much may be allocated: with the race detector a sync.Pool throws away
// a part of what it is given, so a regular expression's machines are allocated over and over
// (sync/pool.go, Put).
const slack = 8
