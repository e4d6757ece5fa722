// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

const (
	auditPolicy = "audit.yaml"
	auditLog    = "audit.log"
)

// auditRules say of which requests the API server keeps a line: those of nodes and of gpuadm's
// ServiceAccount, and the test's marks.
// Source: https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/.
const auditRules = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:nodes", "system:serviceaccounts:gpuadm"]
- level: Metadata
  nonResourceURLs: ["/version"]
`

var marks atomic.Int64

// Requests are what a node or a ServiceAccount has asked the API server for since it kept a line
// for the first time, kubelet's own requests aside: "get /api/v1/nodes/gpu-1".
func (t *T) Requests(user string) []string {
	t.Helper()
	return t.requests(user, "")
}

// PodsRequests are Requests of a ServiceAccount by the tokens of its pods on a node.
func (t *T) PodsRequests(account, node string) []string {
	t.Helper()
	return t.requests(account, node)
}

// Peak is how many requests users whose names begin so sent in one second since a moment, at most.
func (t *T) Peak(users string, since time.Time) (most int) {
	t.Helper()
	count := map[int64]int{}
	for line := range bytes.Lines(t.audited()) {
		var e struct {
			User     struct{ Username string }
			Received time.Time `json:"requestReceivedTimestamp"`
		}
		if json.Unmarshal(line, &e) == nil && strings.HasPrefix(e.User.Username, users) && e.Received.After(since) {
			count[e.Received.Unix()]++
		}
	}

	for _, c := range count {
		most = max(most, c)
	}
	return most
}

// audited is the audit log, up to date: the API server writes a line after it has answered, so a
// later request of the test's own, once it is there, says that.
func (t *T) audited() (text []byte) {
	t.Helper()
	mark := fmt.Sprintf("/version?mark=%d.%d", os.Getpid(), marks.Add(1))
	t.Get(mark)
	t.Until("the audit log has the test's mark", func() string {
		if text = must.Get(os.ReadFile(t.file(auditLog)))(t); !bytes.Contains(text, []byte(mark)) {
			return mark
		}
		return ""
	})
	return text
}

func (t *T) requests(user, node string) (list []string) {
	t.Helper()
	for line := range bytes.Lines(t.audited()) {
		var e struct {
			Verb, RequestURI, UserAgent string
			User                        struct {
				Username string
				Extra    map[string][]string
			}
		}
		if json.Unmarshal(line, &e) != nil { // it is being written
			continue
		}
		// The API server names the node of a token that is bound to a pod:
		// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/, and
		// NodeNameKey in kubernetes/apiserver.
		if node != "" && !slices.Contains(e.User.Extra["authentication.kubernetes.io/node-name"], node) {
			continue
		}
		if e.User.Username == user && !strings.HasPrefix(e.UserAgent, "kubelet/") {
			list = append(list, e.Verb+" "+e.RequestURI)
		}
	}

	return list
}
