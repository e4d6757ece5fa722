// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// everything is what lies in a machine's files, name by name.
func everything(t *testing.T, n *simhost.Node, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := n.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		full := path.Join(dir, name)
		i, err := n.Lstat(full)
		switch {
		case err != nil:
			t.Fatal(err)
		case i.Mode.IsDir():
			for k, v := range everything(t, n, full) {
				all[k] = v
			}
		case i.Mode&fs.ModeSymlink != 0:
			all[full], _ = n.Readlink(full)
		case i.Mode.IsRegular():
			if data, err := n.ReadFile(full); err == nil {
				all[full] = string(data)
			}
		}
	}
	return all
}

// Neither token nor key is in anything that is written, told or printed: not while it goes well, not when it fails, and not after
// a power cut between. But for the two files that are there for them, and those are for root alone.
func TestSecretsOfAJoinStaySecret(t *testing.T) {
	spoils := map[string]func(*testJoin){
		"well":    func(*testJoin) {},
		"denied":  func(j *testJoin) { j.Settle("Denied") },
		"forbids": func(j *testJoin) { j.Token(testToken, kubesim.User{Name: "bob " + testToken, Groups: []string{"x"}}) },
		"repeats": func(j *testJoin) {
			j.Fail(kubesim.Fault{On: "GET /apis/cert", Status: 400, Body: "no to " + testToken, Times: -1})
		},
		"no login": func(j *testJoin) { j.Revoke(testToken) },
	}
	for at := range 12 {
		spoils[fmt.Sprintf("cut at %d", at*5)] = func(j *testJoin) { j.n.CutAt(at * 5) }
	}
	for name, spoil := range spoils {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, joins.Machine, "")
			spoil(j)
			var out strings.Builder
			print := func(what any, err error) {
				data, _ := json.Marshal(what)
				fmt.Fprintf(&out, "%s\n%+v\n%#v\n%v\n%s\n", data, what, what, err, joins.Because(err))
			}
			e := j.engine()
			e.Tell = func(ev converge.Event) { print(ev, nil) }
			print(e.Plan(context.Background(), j.n.View()))
			_, err := e.Apply(context.Background(), j.n)
			print(nil, err)
			if j.n.Off() {
				j.boot(simhost.LoseNothing)
			}
			print(e.Plan(context.Background(), j.n.View()))
			var keys []string
			files := everything(t, j.n, "/")
			const current = kubelet.PKI + "/kubelet-client-2026.pem"
			for _, name := range []string{current} {
				for block, rest := pem.Decode([]byte(files[name])); block != nil; block, rest = pem.Decode(rest) {
					if block.Type == "EC PRIVATE KEY" {
						keys = append(keys, strings.Split(string(pem.EncodeToMemory(block)), "\n")[1])
					}
				}
			}
			if name == "well" && len(keys) != 1 {
				t.Fatalf("%d keys: the test would find none", len(keys))
			}
			files["the messages"] = out.String()
			for _, secret := range append(keys, testToken, strings.Split(testToken, ".")[1]) {
				for name, text := range files {
					if !strings.Contains(text, secret) {
						continue
					}
					i, err := j.n.Stat(name)
					ours := name == "/etc/gpuadm/token" || name == bootstrapKubeconfig || name == current || name == kubelet.CurrentCertificate
					if !ours || err != nil || i.Mode.Perm() != 0o600 {
						t.Errorf("%s tells a secret", name)
					}
				}
			}
		})
	}
}

// At boot systemd holds kubelet back until we have ended: all but its start is done.
func TestJoinAtBoot(t *testing.T) {
	boot := strings.Replace(joins.Machine, "[[unit]]\n", "[[unit]]\nname = \"gpuadm.service\"\nenabled = \"enabled\"\nactive = \"activating\"\n[[unit]]\n", 1)
	n, err := simhost.New([]byte(boot))
	if err != nil {
		t.Fatal(err)
	}
	j := startJoin(t, boot, "")
	j.n = n // as it is while it boots
	n.Serve("api.example:6443", j.joinCluster)
	res, err := j.engine().Apply(context.Background(), n)
	if err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if u, err := n.Unit(context.Background(), "kubelet.service"); err != nil || u.Enabled != "enabled" || u.Active != "inactive" {
		t.Errorf("started while gpuadm.service is at work, or not enabled: %+v %v", u, err)
	}
	later := joins.Names(res.Deferred)
	if !strings.Contains(later, "registered gpu-1 once kubelet runs") {
		t.Errorf("later:\n%s", later)
	}
	if _, err := n.Stat(bootstrapKubeconfig); err != nil || !strings.Contains(later, "secret /etc/gpuadm/token once kubelet runs") {
		t.Errorf("kubelet has nothing to ask by: %v, later:\n%s", err, later)
	}
	n.Boot(simhost.LoseNothing) // kubelet runs, and gpuadm-ready.service applies
	j.apply(t)
	for _, name := range []string{"/etc/gpuadm/token", bootstrapKubeconfig} {
		if _, err := n.Stat(name); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// An image gets all that needs no cluster, and keeps the token.
func TestJoinOfAnImage(t *testing.T) {
	j := startJoin(t, joins.Machine, `cluster_dns = ["10.96.0.10"]`+"\n")
	j.n.Image()
	res := j.apply(t)
	later := joins.Names(res.Deferred)
	for _, want := range []string{"bootstrap " + kubelet.Kubeconfig, "secret /etc/gpuadm/token", "file " + kubelet.ClusterCA} {
		if !strings.Contains(later, want+" first boot") {
			t.Errorf("%s is not put off:\n%s", want, later)
		}
	}
	j.n.FirstBoot()
	j.boot(simhost.LoseNothing)
	j.apply(t)
	if u := j.n.Units(); !strings.Contains(u, "kubelet.service enabled active fresh") {
		t.Errorf("after the first boot:\n%s", u)
	}
}
