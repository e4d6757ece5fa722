// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/cloudfake"
)

// asleep is a machine in Azure whose service of scheduled events wakes two minutes after it was first asked.
type asleep struct {
	host.View
	cloud *cloudfake.Fake

	mu     sync.Mutex
	awake  time.Time
	events int // how often they were asked for
}

// asked is how often events were asked for so far.
func (a *asleep) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.events
}

// wakes counts a question, and says how long the answer takes.
func (a *asleep) wakes() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.events++; a.awake.IsZero() {
		a.awake = time.Now().Add(2 * time.Minute)
	}
	return time.Until(a.awake)
}

func (a *asleep) AskWeb(host.Web) (http.RoundTripper, error) { return a, nil }

func (a *asleep) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/metadata/scheduledevents") {
		select {
		case <-time.After(a.wakes()):
		case <-time.After(30 * time.Second): // as internal/host has it
			return nil, errors.New("net/http: timeout awaiting response headers")
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	w := httptest.NewRecorder()
	a.cloud.Azure().ServeHTTP(w, r)
	return w.Result(), nil
}

// TestNoticesAzure: the first question, which wakes Azure's service, goes on beside the stages: none of them waits for it but the
// first, shortly, and the answer is there before the next one.
func TestNoticesAzure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := &cloudfake.Fake{Machine: cloudfake.Machine{ID: "5f2b7a0e", Type: "Standard_ND96isr_H100_v5", Region: "eastus", Name: "gpu_0", Spot: true}}
		cloud.Machine.Events = `{"Events":[{"EventType":"Preempt","Resources":["gpu_0"],"NotBefore":"Tue, 03 Feb 2026 04:07:00 GMT"}]}`
		v, began := &asleep{cloud: cloud}, time.Now()
		var notices instance.Notices
		ask := func() *instance.Notice {
			return notices.Ask(t.Context(), v, &instance.Instance{Cloud: "azure", Spot: true})
		}
		for range 5 { // stages
			if n := ask(); n != nil {
				t.Fatalf("asleep, it said %v", n)
			}
		}
		if waited, events := time.Since(began), v.asked(); waited > 2*time.Second || events != 1 {
			t.Errorf("five stages were kept %v by %d questions, want one of 2 s at most", waited, events)
		}
		time.Sleep(150 * time.Second) // a stage
		synctest.Wait()
		before := time.Now()
		if n := ask(); n == nil || n.What != "preempt" {
			t.Errorf("awake, it said %v", n)
		}
		if time.Since(before) > 0 {
			t.Error("it was waited for, awake")
		}
		cloud.Machine.Events = ""
		if n := ask(); n != nil {
			t.Errorf("what holds no more is said: %v", n)
		}
	})
}

// TestNoticesOthers: the other clouds are asked at once.
func TestNoticesOthers(t *testing.T) {
	var notices instance.Notices
	f, n := in(t, "aws", ec2())
	f.Machine.Spot, f.Machine.SpotAction = true, `{"action":"terminate","time":"2026-02-03T04:07:00Z"}`
	if got := notices.Ask(t.Context(), n.View(), &instance.Instance{Cloud: "aws", ID: f.Machine.ID, Spot: true}); got == nil || got.What != "terminate" {
		t.Errorf("EC2 said %v", got)
	}
}
