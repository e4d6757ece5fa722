// SPDX-License-Identifier: Apache-2.0

package cloudfake

import "time"

// Setup is a fake cloud as a file describes it, for the command serve.
type Setup struct {
	Cloud   string  `json:"cloud"` // aws, gce, azure
	Machine Machine `json:"machine"`
	Cluster Cluster `json:"cluster"`
	Faults  []Fault `json:"faults"`
	Refused string  `json:"refused"` // how AWS's APIs say no: see Refused
	// ClockOff is how far the cloud's clock is ahead of this machine's, in seconds.
	ClockOff int `json:"clockOff"`
}

// Fake is the cloud that the setup describes.
func (s Setup) Fake() *Fake {
	off := time.Duration(s.ClockOff) * time.Second
	f := &Fake{
		Machine: s.Machine,
		Cluster: s.Cluster,
		Now:     func() time.Time { return time.Now().Add(off) },
	}
	f.Break(s.Faults...)
	f.Break(Refused(s.Refused)...)

	return f
}
