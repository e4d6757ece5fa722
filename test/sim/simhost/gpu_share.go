// SPDX-License-Identifier: Apache-2.0

package simhost

import "github.com/gpuadm/gpuadm/internal/host"

// engines is what a GPU instance has: multiprocessors, then copy engines, decoders, encoders, JPEG
// engines, OFAs.
type engines [6]int

// profileEngines is what the profiles of a grid have, by the driver's id. Figures are those of the
// tables of NVIDIA's MIG user guide; B200's multiprocessors are assumed.
func profileEngines(g *host.GPU) map[int]engines {
	switch {
	case g.Arch == "ampere" && len(g.Profiles) == 5: // A30
		return map[int]engines{
			14: {14, 1},
			21: {14, 1, 1, 0, 1, 1},
			5:  {28, 2, 2},
			6:  {28, 2, 2, 0, 1, 1},
			0:  {56, 4, 4, 0, 1, 1},
		}
	case g.Arch == "ampere":
		return map[int]engines{
			19: {14, 1},
			20: {14, 1, 1, 0, 1, 1},
			15: {14, 1, 1},
			14: {28, 2, 1},
			9:  {42, 3, 2},
			5:  {56, 4, 2},
			0:  {98, 7, 5, 0, 1, 1},
		}
	case g.Compute == "12.0": // RTX PRO 6000
		return map[int]engines{
			14: {46, 1, 1, 1, 1},
			21: {46, 1, 1, 1, 1, 1},
			47: {46, 1, 1, 1, 1},
			65: {46, 1, 4, 4, 4, 1},
			67: {46, 1},

			5:  {94, 2, 2, 2, 2},
			35: {94, 2, 2, 2, 2},
			64: {94, 2, 4, 4, 4, 1},
			66: {94, 2},

			0:  {188, 4, 4, 4, 4, 1},
			32: {188, 4, 4, 4, 4, 1},
		}
	}

	sms := [7]int{16, 16, 26, 32, 60, 64, 132}
	if g.Arch == "blackwell" {
		sms = [7]int{18, 18, 30, 36, 70, 72, 148}
	}
	return map[int]engines{
		19: {sms[0], 1, 1, 0, 1},
		20: {sms[1], 1, 1, 0, 1, 1},
		15: {sms[2], 1, 1, 0, 1},
		14: {sms[3], 2, 2, 0, 2},
		9:  {sms[4], 3, 3, 0, 3},
		5:  {sms[5], 4, 4, 0, 4},
		0:  {sms[6], 8, 7, 0, 7, 1},
	}
}

// share is what the device of a compute instance of some slices has in an instance of a profile.
func share(g *host.GPU, p host.Profile, slices int) host.Share {
	has := profileEngines(g)[p.ID]
	return host.Share{
		Memory:   p.Memory,
		SMs:      has[0] * slices / p.Slices,
		Slices:   p.Slices,
		Compute:  slices,
		Copy:     has[1],
		Decoders: has[2],
		Encoders: has[3],
		JPEG:     has[4],
		OFAs:     has[5],
	}
}
