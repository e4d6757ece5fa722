// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// wants returns the join's wants as facts have them now.
func (j *testJoin) wants(t *testing.T) ([]converge.Want, error) {
	t.Helper()
	f, err := facts.Gather(context.Background(), j.n, facts.Needs{Files: method.Files(j.spec)})
	if err != nil {
		t.Fatal(err)
	}
	return Wants(new(node.Session), j.spec, f)
}

// joiner is one join that does not really sleep.
func (j *testJoin) joiner(t *testing.T) *join {
	t.Helper()
	f, err := facts.Gather(context.Background(), j.n, facts.Needs{Files: method.Files(j.spec)})
	if err != nil {
		t.Fatal(err)
	}
	join := newJoin(new(node.Session), j.spec, f)
	join.sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return join
}

// Each thing that keeps a machine from joining has its own message, before anything is touched, with a fix.
func TestPreflightOfAJoin(t *testing.T) {
	write := func(j *testJoin, name, text string, mode uint32) {
		if err := j.n.WriteFile(name, []byte(text), host.Attr{Mode: fs.FileMode(mode)}); err != nil {
			t.Fatal(err)
		}
	}
	const version, info = "GET /version", "GET /api/v1/namespaces/kube-public/configmaps/cluster-info"
	for name, c := range map[string]struct {
		more      string // of [join]
		section   string // after it
		spoil     func(*testJoin)
		says, try string
	}{
		"all is well":   {spoil: func(*testJoin) {}},
		"no token":      {spoil: func(j *testJoin) { j.n.Remove("/etc/gpuadm/token") }, says: "there is no bootstrap token, /etc/gpuadm/token is not there", try: "kubeadm token create"},
		"open token":    {spoil: func(j *testJoin) { write(j, "/etc/gpuadm/token", testToken, 0o640) }, says: "others than root may read it", try: "chmod 0600"},
		"no token form": {spoil: func(j *testJoin) { write(j, "/etc/gpuadm/token", "abcdef.S3CR3T", 0o600) }, says: "not the form", try: "kubeadm token create"},
		"expired":       {spoil: func(j *testJoin) { j.Publish() }, says: "the cluster knows no token abcdef", try: "kubeadm token create"},
		"wrong secret":  {spoil: func(j *testJoin) { j.Publish("abcdef.another890123456") }, says: "its secret part is another", try: "kubeadm token list"},
		"unsigned":      {spoil: func(j *testJoin) { j.Revoke(testToken) }, says: "does not take the token abcdef", try: "usage authentication"},
		"may not ask": {
			spoil: func(j *testJoin) {
				j.Token(testToken, kubesim.User{Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}})
			},
			says: "may not ask for a certificate", try: "--clusterrole=system:node-bootstrapper",
		},
		"no bootstrap token": {
			spoil: func(j *testJoin) { j.Token(testToken, kubesim.User{Name: "bob", Groups: []string{"people"}}) },
			says:  "is no bootstrap token; the cluster knows it as bob", try: "kubeadm token create",
		},
		"another pin":     {more: `ca_pin = "sha256:` + strings.Repeat("ab", 32) + `"`, spoil: func(*testJoin) {}, says: "not the one that ca_pin says", try: "print-join-command"},
		"no such host":    {spoil: func(j *testJoin) { j.n.Serve("api.example:6443", nil) }, says: "cannot find api.example", try: "getent hosts api.example"},
		"behind a proxy":  {section: "[proxy]\nhttps = \"http://proxy.example:3128\"\n", spoil: func(j *testJoin) { j.n.Serve("api.example:6443", nil) }, says: "through the proxy http://proxy.example:3128", try: `no_proxy = ["api.example"]`},
		"no cluster-info": {spoil: func(j *testJoin) { j.Fail(kubesim.Fault{On: info, Status: 404, Times: -1}) }, says: "does not show the ConfigMap cluster-info", try: "ca_file ="},
		"says otherwise": {
			spoil: func(j *testJoin) {
				j.Fail(kubesim.Fault{On: info})
				j.Fail(kubesim.Fault{On: info, Do: func(s *kubesim.Server) {
					s.Serve("/api/v1/namespaces/kube-public/configmaps/cluster-info", kubesim.Object{"kind": "ConfigMap", "data": kubesim.Object{"kubeconfig": "another"}})
				}})
			}, says: "something else when its certificate was looked at", try: "openssl s_client",
		},
		"no API server": {
			spoil: func(j *testJoin) {
				j.n.Serve("api.example:6443", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>hello")) }))
			}, says: "it is no Kubernetes API server", try: "kubectl cluster-info",
		},
		"a clock behind": {spoil: func(j *testJoin) {
			j.silent = map[string]string{"date": j.n.Now().Add(3 * time.Hour).UTC().Format(http.TimeFormat)}
		}, says: "clock is 3h0m0s behind the API server's", try: "timedatectl"},
		"a clock ahead": {spoil: func(j *testJoin) {
			j.silent = map[string]string{"date": j.n.Now().Add(-150 * time.Second).UTC().Format(http.TimeFormat)}
		}, says: "clock is 2m30s ahead of", try: "timedatectl"},
		"a clock that will do": {spoil: func(j *testJoin) {
			j.silent = map[string]string{"date": j.n.Now().Add(-110 * time.Second).UTC().Format(http.TimeFormat)}
		}},
		"no ca_file":    {more: `ca_file = "/etc/gpuadm/ca.crt"`, spoil: func(*testJoin) {}, says: "cannot read /etc/gpuadm/ca.crt", try: "copy /etc/kubernetes/pki/ca.crt"},
		"empty ca_file": {more: `ca_file = "/etc/gpuadm/ca.crt"`, spoil: func(j *testJoin) { write(j, "/etc/gpuadm/ca.crt", "no", 0o644) }, says: "holds no certificate", try: "copy /etc/kubernetes/pki/ca.crt"},
		"version fails": {more: `ca_file = "/etc/gpuadm/ca.crt"`, spoil: func(j *testJoin) {
			write(j, "/etc/gpuadm/ca.crt", string(j.CA()), 0o644)
			j.Fail(kubesim.Fault{On: version, Status: 302})
		}, says: "it is no Kubernetes API server", try: "kubectl cluster-info"},
		"ca_file": {more: `ca_file = "/etc/gpuadm/ca.crt"`, spoil: func(j *testJoin) {
			write(j, "/etc/gpuadm/ca.crt", string(j.CA()), 0o644)
			j.Publish() // no server has to sign for a token then
		}},
	} {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, joins.Machine, c.more+"\n")
			if c.section != "" {
				j.parse(t, "ca_pin = \""+j.Pin()+"\"\n"+c.section)
			}
			c.spoil(j)
			before := j.n.Touches()
			err := j.joiner(t).try(context.Background(), j.n.View())
			if c.says == "" {
				if err != nil {
					t.Fatalf("%v\n%s", err, joins.Because(err))
				}
				return
			}
			all := ""
			if err != nil {
				all = err.Error() + "\n" + joins.Because(err)
			}
			if !strings.HasPrefix(all, "cannot ") || !strings.Contains(all, c.says) || !strings.Contains(all, c.try) {
				t.Errorf("wanted %q and the fix %q:\n%s", c.says, c.try, all)
			}
			if strings.Contains(all, "s3cr3t") {
				t.Errorf("it tells the token: %s", all)
			}
			if asked := j.Asked(); len(asked) > 0 || j.n.Touches() != before {
				t.Errorf("touched: %v", asked)
			}
		})
	}
}

// What the machine itself lacks is found without a question to any server.
func TestPreflightOfTheMachine(t *testing.T) {
	for name, c := range map[string]struct {
		old, new, more, says, try string
	}{
		"swap":             {"Priority\n", "Priority\n/dev/sda2 partition 1 0 -2\n", "", "swap is on (/dev/sda2)", "swapoff -a"},
		"no kubelet":       {"-- usr/bin/kubelet mode=0755 size=1000 --\n", "", "", "no kubelet is installed", "install the package kubelet"},
		"localhost":        {"hostname --\ngpu-1\n", "hostname --\nlocalhost\n", "", `called "localhost"`, "hostnamectl set-hostname"},
		"a missing config": {"", "", `kubelet_config = "/etc/gpuadm/kubelet.yaml"`, "cannot read /etc/gpuadm/kubelet.yaml", "KubeletConfiguration"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.old != "" && !strings.Contains(joins.Machine, c.old) {
				t.Fatal("the machine has no such text")
			}
			j := startJoin(t, strings.ReplaceAll(joins.Machine, c.old, c.new), c.more+"\n")
			j.Requests()
			_, err := j.wants(t)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(joins.Because(err), c.try) {
				t.Errorf("wanted %q and %q: %v\n%s", c.says, c.try, err, joins.Because(err))
			}
			if asked := j.Requests(); len(asked) > 0 {
				t.Errorf("asked %v", asked)
			}
		})
	}
}

func TestCgroup1(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	for _, c := range []struct {
		version string
		cgroup  int
		config  map[string]any
		refused bool
	}{
		{"1.35.4", 1, nil, true},
		{"1.35.4", 1, map[string]any{"failCgroupV1": false}, false},
		{"1.36.0-rc.1", 1, map[string]any{"failCgroupV1": true}, true},
		{"1.34.9", 1, nil, false},
		{"", 1, nil, false},
		{"1.35.4", 2, nil, false},
		{"1.35.4", 0, nil, false},
	} {
		err := kubelet.Starts(c.config, j.spec, facts.Facts{Cgroup: c.cgroup, Kubelet: facts.Kubelet{Version: c.version}})
		if (err != nil) != c.refused || c.refused && !strings.Contains(joins.Because(err), "failCgroupV1: false") {
			t.Errorf("%+v: %v\n%s", c, err, joins.Because(err))
		}
	}
}

// A name that another machine has is left alone: nothing is written to its Node, and kubelet is not started.
func TestNameTaken(t *testing.T) {
	for name, c := range map[string]struct {
		machine, board, ready string
		taken                 bool
	}{
		"another":                {"ffff", "99999999-2222-3333-4444-555555555555", "True", true},
		"another's clone":        {testID, "99999999-2222-3333-4444-555555555555", "True", true},
		"reinstalled":            {"ffff", "11111111-2222-3333-4444-555555555555", "True", true},
		"ours":                   {testID, "11111111-2222-3333-4444-555555555555", "True", false},
		"what another has left":  {"ffff", "99999999-2222-3333-4444-555555555555", "Unknown", false},
		"ours, in other letters": {testID, strings.ToUpper("11111111-2222-3333-4444-555555555555"), "True", false},
	} {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, joins.Machine, "")
			j.stays = c.taken
			j.PutNode(kubesim.Object{"metadata": kubesim.Object{"name": "gpu-1"}, "status": kubesim.Object{
				"conditions": []any{kubesim.Object{"type": "Ready", "status": c.ready}},
				"nodeInfo":   kubesim.Object{"machineID": c.machine, "systemUUID": c.board, "bootID": "x"},
			}})
			first := j.tree()
			_, err := j.engine().Apply(context.Background(), j.n)
			if !c.taken {
				if err != nil {
					t.Fatal(err, joins.Because(err))
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "another machine is that node") || !strings.Contains(joins.Because(err), "node_name") {
				t.Fatalf("%v\n%s", err, joins.Because(err))
			}
			if got := j.tree(); got != first {
				t.Errorf("left behind:\n%s", got)
			}
			for _, r := range j.Requests() {
				if strings.Contains(r, "/nodes/") && !strings.HasPrefix(r, "GET ") {
					t.Errorf("the node was touched: %s", r)
				}
			}
		})
	}
}

// The error names the request that waits for approval and how to approve it; the next run goes on with the same request.
func TestApprovalByHand(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.Settle("wait")
	_, err := j.engine().Apply(t.Context(), j.n)
	asked := j.Asked()
	waits := interface{ Waits() bool }(nil)
	if len(asked) != 1 || !errors.As(err, &waits) || !waits.Waits() || !strings.Contains(joins.Because(err), "kubectl certificate approve "+asked[0]) {
		t.Fatalf("%v: %v\n%s", asked, err, joins.Because(err))
	}
	if i, err := j.n.Stat(bootstrapKubeconfig); err != nil || i.Mode.Perm() != 0o600 {
		t.Errorf("kubelet cannot ask, or others can: %v %v", i.Mode, err)
	}
	j.boot(simhost.LoseAll)
	j.Settle("")
	j.apply(t)
	if again := j.Asked(); len(again) != 1 {
		t.Errorf("it has asked again: %v", again)
	}
}

// TestUnsigned: each reason why kubelet has no certificate is named, with the request.
func TestUnsigned(t *testing.T) {
	const csr = "csr-abcdef"
	for name, c := range map[string]struct {
		spoil     func(*testJoin)
		says, try string
		back      bool
	}{
		"denied":       {spoil: func(j *testJoin) { j.Settle("Denied") }, says: "the request " + csr + " for the node's certificate is denied", try: "kubectl describe csr " + csr, back: true},
		"failed":       {spoil: func(j *testJoin) { j.Settle("Failed") }, says: "the request " + csr + " for the node's certificate is failed", try: "kubectl describe csr " + csr, back: true},
		"no signer":    {spoil: func(j *testJoin) { j.Settle("Approved") }, says: "the request " + csr + " is approved, and no certificate was issued", try: "kube-controller-manager"},
		"kubelet dies": {spoil: func(j *testJoin) { j.dead = true }, says: "kubelet has not asked for its certificate", try: "journalctl -u kubelet"},
		"may not look": {spoil: func(j *testJoin) {
			j.Settle("wait")
			j.Fail(kubesim.Fault{On: "GET /apis/cert", Status: 403, Times: -1})
		}, says: "kubelet has not asked for its certificate", try: "journalctl -u kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, joins.Machine, "")
			c.spoil(j)
			first := j.tree()
			_, err := j.engine().Apply(t.Context(), j.n)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(joins.Because(err), c.try) || trouble.Passes(err) == c.back {
				t.Errorf("%v\n%s", err, joins.Because(err))
			}
			if got := j.tree(); (got == first) != c.back {
				t.Errorf("now:\n%s", got)
			}
		})
	}
}

// A token that may not read nodes joins all the same, and the run says that the name was not checked.
func TestNameNotChecked(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	u := kubesim.Bootstrapper("abcdef")
	u.May = slices.DeleteFunc(u.May, func(may string) bool { return may == "get nodes" })
	j.Token(testToken, u)
	var told strings.Builder
	e := j.engine()
	e.Tell = func(ev converge.Event) { told.WriteString(ev.Text + "\n") }
	if _, err := e.Apply(t.Context(), j.n); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if !strings.Contains(told.String(), "the name gpu-1 was not checked") {
		t.Errorf("told:\n%s", told.String())
	}
}

// gpuadm does not touch a CA of another cluster, nor a node that another tool has set up.
func TestForeignFilesStay(t *testing.T) {
	other := startJoin(t, joins.Machine, "")
	j := startJoin(t, joins.Machine+"-- etc/kubernetes/pki/ca.crt --\n"+string(other.CA()), "")
	p, err := j.engine().Plan(context.Background(), j.n.View())
	if err != nil || len(p.Cannot()) != 1 || !strings.Contains(p.Cannot()[0].Cannot, "another cluster's CA lies there") {
		t.Errorf("%v %+v", err, p.Cannot())
	}
	j = startJoin(t, joins.Machine+"-- etc/kubernetes/kubelet.conf --\napiVersion: v1\n", "")
	wants, err := j.wants(t)
	if err != nil || len(wants) > 0 {
		t.Errorf("a node of kubeadm's is changed: %v %v", wants, err)
	}
}

// A certificate that has run out, since the machine was off for long, is renewed by another token.
func TestCertificateThatHasRunOut(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	j.n.Advance(2 * 365 * 24 * time.Hour)
	j.Signer.Now = j.n.Now()
	p, err := j.engine().Plan(context.Background(), j.n.View())
	if err != nil || len(p.Cannot()) != 1 || !strings.Contains(p.Cannot()[0].Cannot, "that takes a new bootstrap token, and /etc/gpuadm/token is not there") {
		t.Fatalf("%v %+v", err, p.Cannot())
	}
	if err := j.n.WriteFile("/etc/gpuadm/token", []byte(testToken+"\n"), host.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	j.apply(t)
	if list := certificates([]byte(j.read(t, kubelet.CurrentCertificate))); len(list) != 1 || !list[0].NotAfter.After(j.n.Now()) {
		t.Errorf("it has run out still: %v", list)
	}
	if p, err := j.engine().Plan(context.Background(), j.n.View()); err != nil || len(p.Changes) > 0 {
		t.Errorf("still planned: %v %s", err, joins.Names(p.Changes))
	}
}

// A machine that is a node already does not take another name.
func TestAnotherName(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	j.parse(t, "node_name = \"gpu-2\"\nca_pin = \""+j.Pin()+"\"\n")
	p, err := j.engine().Plan(context.Background(), j.n.View())
	if err != nil || len(p.Cannot()) == 0 || !strings.Contains(p.Cannot()[0].Cannot, "this machine holds the certificate of gpu-1") {
		t.Errorf("%v %+v", err, p.Cannot())
	}
}

// An API server that goes away in the midst leaves nothing half done: the next apply goes on.
func TestServerGoesAwayWhileJoining(t *testing.T) {
	for _, on := range []string{"GET /api/v1/nodes/gpu-1", "GET /apis/certificates"} {
		t.Run(on, func(t *testing.T) {
			j := startJoin(t, joins.Machine, "")
			j.Fail(kubesim.Fault{On: on, Status: 503, Times: -1})
			e, se := j.engine(), new(node.Session)
			e.Stages = []converge.Stage{j.stage(se), joinedStage(se)}
			_, err := e.Apply(kube.Within(context.Background(), 0), j.n)
			if err == nil || !trouble.Passes(err) {
				t.Fatalf("it does not say that waiting helps: %v", err)
			}
			j.Heal()
			j.apply(t)
			if asked := j.Asked(); len(asked) != 1 {
				t.Errorf("it has asked %d times", len(asked))
			}
		})
	}
}

// TestCertificateWaitTells: a run says who has to approve, while it waits for that.
func TestCertificateWaitTells(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.Approve = "wait"
	if _, err := j.engine().Apply(t.Context(), j.n); !trouble.Passes(err) {
		t.Fatal(err)
	}
	var told []string
	ctx := converge.Listen(context.Background(), func(_ converge.What, text string) { told = append(told, text) })
	if err := j.joiner(t).waitCertified(ctx, j.n); !trouble.Passes(err) {
		t.Fatalf("got %v", err)
	}
	if len(told) < 3 || len(told) > 6 || !strings.Contains(told[0], "waits to be approved") || !strings.Contains(told[0], "waiting since") {
		t.Errorf("told %q", told)
	}
}
