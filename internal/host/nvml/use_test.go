// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
)

func isOverdue(err error) bool {
	var none *host.NoDriver
	return errors.As(err, &none) && none.Code == host.Overdue
}

// A call that hangs is abandoned after its limit, and at once when its caller gives up. While it is
// at work no other call waits for it; afterwards the library can be used again.
func TestCallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUse()
		hangs := make(chan struct{})
		hang := func() error { <-hangs; return nil }

		began := time.Now()
		err := u.call(t.Context(), time.Minute, hang)
		took := time.Since(began)
		check.That(t, isOverdue(err) && took == time.Minute, "%v after %v", err, took)

		err = u.call(t.Context(), time.Minute, func() error {
			return errors.New("it was called")
		})
		took = time.Since(began)
		check.That(t, isOverdue(err) && took == time.Minute, "the next: %v after %v", err, took)

		close(hangs)
		synctest.Wait()
		err = u.call(t.Context(), time.Minute, func() error { return nil })
		check.That(t, err == nil, "not usable again: %v", err)

		hangs = make(chan struct{})
		stopped := errors.New("SIGTERM")
		ctx, stop := context.WithCancelCause(t.Context())
		began = time.Now()
		time.AfterFunc(time.Second, func() { stop(stopped) })
		err = u.call(ctx, time.Minute, hang)
		took = time.Since(began)
		check.That(t, errors.Is(err, stopped) && took == time.Second, "%v after %v", err, took)
		close(hangs)
	})
}
