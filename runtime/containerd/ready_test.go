// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
)

func message(fields ...any) (m []byte) {
	for i := 0; i < len(fields); i += 2 {
		n := protowire.Number(fields[i].(int))
		switch v := fields[i+1].(type) {
		case string:
			m = protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), v)
		case []byte:
			m = protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), v)
		case bool:
			m = protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), protowire.EncodeBool(v))
		}
	}
	return m
}

func status(ready bool, config string) []byte {
	conditions := message(1, message(1, "RuntimeReady", 2, ready, 3, "why", 4, "words"), 1, message(1, "NetworkReady", 2, false))
	return message(1, conditions, 2, message(1, "config", 2, config), 2, message(1, "golang", 2, "x"))
}

func TestJudgeStatus(t *testing.T) {
	const with = `{"containerd":{"runtimes":{"runc":{},"nvidia":{}}}}`
	for name, c := range map[string]struct {
		status  []byte
		handler string
		err     string
	}{
		"ready":           {status(true, with), "nvidia", ""},
		"not ready":       {status(false, with), "", "not ready: why: words"},
		"handler missing": {status(true, `{"containerd":{"runtimes":{"runc":{}}}}`), "nvidia", "without the handler nvidia"},
		"tells nothing":   {status(true, ""), "nvidia", ""},
		"not JSON":        {status(true, "{"), "nvidia", ""},
		"empty":           {nil, "", ""},
		"cut":             {status(true, with)[:20], "", "cannot read the daemon's status"},
	} {
		if err := judgeStatus(c.status, c.handler); (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

func FuzzJudgeStatus(f *testing.F) {
	f.Add(status(true, `{"containerd":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc.Most(t, 1000, len(data), func() { judgeStatus(data, "nvidia") })
	})
}

// slow answers at the third call.
type slow struct {
	host.View
	calls int
	then  error
}

func (s *slow) Call(context.Context, string, string, []byte) ([]byte, error) {
	if s.calls++; s.calls < 3 {
		return nil, errors.New("connection refused")
	}
	return status(true, ""), s.then
}

func TestAnswers(t *testing.T) {
	s := (&slow{})
	check.That(t, Answers(t.Context(), s, "", "nvidia") == nil && s.calls == 3, "a daemon that takes its time: %d calls", s.calls)
	err := Answers(t.Context(), &slow{then: errors.New("gRPC status 12: unknown service")}, "", "")
	check.That(t, err != nil && strings.Contains(err.Error(), "CRI plugin does not"), "a daemon without CRI: %v", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.That(t, Answers(ctx, &slow{}, "", "") != nil, "did not stop when told to")
}
