// SPDX-License-Identifier: Apache-2.0

package main

import "time"

const betweenBeats = 500 * time.Millisecond

// everyBeat calls beat again and again, until end is called: so often, a pulse and a silence look
// whether it is time to say something.
func everyBeat(beat func(now time.Time)) (end func()) {
	over := make(chan struct{})
	go func() {
		clock := time.NewTicker(betweenBeats)
		defer clock.Stop()
		for {
			select {
			case now := <-clock.C:
				beat(now)
			case <-over:
				return
			}
		}
	}()
	return func() { close(over) }
}
