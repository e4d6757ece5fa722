// SPDX-License-Identifier: Apache-2.0

package kubesim_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/kubesim/recorded"
)

// TestAsRecorded: the simulated server answers as the real one did. A difference is a fault of the
// simulation.
func TestAsRecorded(t *testing.T) {
	t.Parallel()
	s := kubesim.New(kubesim.User{})
	s.Token(recorded.Admin, kubesim.Admin())
	s.Token(recorded.Kubelet, kubesim.Node("gpu-1"))
	s.Token(recorded.NoRole, kubesim.User{Name: recorded.NoRole})
	s.Token(recorded.Role, kubesim.User{
		Name: recorded.Role,
		May:  []string{"get nodes", "patch nodes"},
	})
	for _, name := range []string{"gpu-1", "gpu-2"} {
		s.AddNode(name, map[string]string{"a": "b"}, kubesim.Object{"key": "k", "effect": "NoSchedule"})
	}

	record := recorded.Read(t)
	for i, r := range recorded.Requests() {
		request := httptest.NewRequest(r.Method, r.Path, strings.NewReader(r.Body))
		request.Header.Set("Authorization", "Bearer "+r.Who)
		request.Header.Set("Content-Type", r.Form)
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, request)

		got := recorded.AnswerOf(r, answer.Code, answer.Body.Bytes())
		check.Equal(t, text(t, got), text(t, record.Answers[i]), "%s by %s:", r.What, r.Who)
	}
}

func text(t *testing.T, a recorded.Answer) string {
	t.Helper()
	return string(must.Get(json.Marshal(a))(t))
}
