// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// maxClockError is the largest allowed error of the clock. AWS refuses signed requests from five
// minutes on.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
const maxClockError = 5 * time.Minute

// wrongClock returns the error for a clock whose signed requests AWS would refuse; nil if the clock
// is good enough.
func wrongClock(off time.Duration, than string) *trouble.Error {
	if off.Abs() < maxClockError {
		return nil
	}

	side := "ahead of"
	if off < 0 {
		side = "behind"
	}
	const wrong = "cannot sign requests: the machine's clock is %s %s %s"
	return &trouble.Error{
		What: fmt.Sprintf(wrong, off.Round(time.Second).Abs(), side, than),
		Because: []string{
			"AWS refuses requests whose time is more than five minutes off, and the cluster's certificates may count as not valid yet",
		},
		Try: []string{
			"chronyc tracking    (or timedatectl timesync-status): is time synchronised, and from where",
			"on EC2, let chrony use 169.254.169.123: it is there without any route",
			"chronyc makestep    sets the clock at once",
		},
		Passing: true,
	}
}
