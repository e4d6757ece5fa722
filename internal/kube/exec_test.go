// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// credentials is what a plugin prints.
func credentials(version string, status map[string]any) string {
	b, err := json.Marshal(map[string]any{"apiVersion": execGroup + version, "kind": "ExecCredential", "status": status})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestExec(t *testing.T) {
	for name, tt := range map[string]struct {
		version, out string
		fails        error
		user         string
		why          Why
		words        string
	}{
		"v1":            {"v1", credentials("v1", map[string]any{"token": planted}), nil, "known", "", ""},
		"v1beta1":       {"v1beta1", credentials("v1beta1", map[string]any{"token": planted, "expirationTimestamp": "2026-01-02T03:20:00Z"}), nil, "known", "", ""},
		"certificate":   {"v1", credentials("v1", map[string]any{"clientCertificateData": "x", "clientKeyData": "y"}), nil, "", Unauthorized, "without a token"},
		"other version": {"v1", credentials("v1beta1", map[string]any{"token": planted}), nil, "", Unauthorized, "another version"},
		"no JSON":       {"v1", planted, nil, "", Unauthorized, "not with an ExecCredential"},
		"other kind":    {"v1", `{"kind":"Pod","token":"` + planted + `"}`, nil, "", Unauthorized, "not with an ExecCredential"},
		"a number":      {"v1", `{"kind":"ExecCredential","status":{"token":12}}`, nil, "", Unauthorized, "not with an ExecCredential"},
		"nothing":       {"v1", credentials("v1", nil), nil, "", Unauthorized, "without a token"},
		"fails":         {"v1", "", &host.CommandError{Argv: []string{"aws"}, Code: 255, Stderr: "Unable to locate\ncredentials", Cause: errors.New("exit status 255")}, "", Unauthorized, "Unable to locate; credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			sim := kubesim.New(kubesim.User{Name: "default"})
			sim.Token(planted, kubesim.User{Name: "known"})
			n := machine(t, "-- etc/k --\n"+withUser(fmt.Sprintf(
				`{exec: {apiVersion: %s%s, command: aws, args: [eks, get-token], env: [{name: A, value: %s}], interactiveMode: IfAvailable}}`, execGroup, tt.version, planted)))
			n.Serve("api.example:6443", sim)
			asked := 0
			n.Install("aws", simhost.Program{
				Looks: func([]string) bool { return true },
				Run: func(_ *files.Files, argv []string) ([]byte, error) {
					if asked++; strings.Join(argv, " ") != "aws eks get-token" {
						t.Errorf("ran %v", argv)
					}
					return []byte(tt.out), tt.fails
				},
			})
			c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
			must.OK(t, err)
			for range 2 {
				is, err := c.Whoami(t.Context())
				if tt.user == "" {
					wants(t, err, tt.why, tt.words)
				} else if err != nil || is.Username != tt.user {
					t.Errorf("%q, %v", is.Username, err)
				}
			}

			check.That(t, tt.user == "" || asked == 1, "the plugin was asked %d times", asked)
		})
	}
}

// TestExecAgain wants a plugin asked again when what it gave has run out, or is no longer taken;
// and then not for ever.
func TestExecAgain(t *testing.T) {
	sim := kubesim.New(kubesim.User{})
	n := machine(t, "-- etc/k --\n"+withUser(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/p}}`))
	n.Serve("api.example:6443", sim)
	asked := 0
	n.Install("p", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(*files.Files, []string) ([]byte, error) {
			asked++
			return []byte(credentials("v1", map[string]any{"token": fmt.Sprint("token-", asked), "expirationTimestamp": simNow().Add(time.Duration(asked) * time.Hour)})), nil
		},
	})
	c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	for i, want := range []string{"one", "two"} {
		sim.Token(fmt.Sprint("token-", i+1), kubesim.User{Name: want})
		is, err := c.Whoami(t.Context())
		check.That(t, err == nil && is.Username == want, "%q, %v", is.Username, err)
		sim.Revoke(fmt.Sprint("token-", i+1))
	}

	_, err = c.Whoami(t.Context())
	wants(t, err, Unauthorized, "what /etc/bin/p gives", "access entry")
	check.That(t, asked == 3, "asked %d times", asked)
	sim.Token("token-4", kubesim.User{Name: "later"})
	c.login.view = ahead{n, 3 * time.Hour}
	is, err := c.Whoami(t.Context())
	check.That(t, err == nil && is.Username == "later", "%q, %v", is.Username, err)
}

// TestExecAgainInOneTry: the plugin is asked again also for a client that retries no request, and the
// server has the time of a first try.
func TestExecAgainInOneTry(t *testing.T) {
	sim := kubesim.New(kubesim.User{})
	n := machine(t, "-- etc/k --\n"+withUser(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/p}}`))
	n.Serve("api.example:6443", sim)
	asked := 0
	n.Install("p", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(*files.Files, []string) ([]byte, error) {
			asked++
			return []byte(credentials("v1", map[string]any{"token": fmt.Sprint("token-", asked)})), nil
		},
	})
	c := must.Get(new(Clients).Ask(n, From{Kubeconfig: "/etc/k"}))(t).Within(0)
	sim.Token("token-1", kubesim.User{Name: "one"})
	must.Get(c.Whoami(t.Context()))(t)
	sim.Revoke("token-1")

	sim.Token("token-2", kubesim.User{Name: "two"})
	is, err := c.Whoami(t.Context())
	check.That(t, err == nil && is.Username == "two", "%q, %v", is.Username, err)
}

type ahead struct {
	host.View
	by time.Duration
}

func (a ahead) Now() time.Time { return a.View.Now().Add(a.by) }

// TestExecInfo wants the plugin told what form is wanted, and the cluster where it asks for it.
func TestExecInfo(t *testing.T) {
	l := &login{
		server: server,
		roots:  []byte("x"),
		exec:   &plugin{version: execGroup + "v1"},
	}
	got, want := l.execInfo(), `KUBERNETES_EXEC_INFO={"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}`
	check.That(t, got == want, "got %s", got)
	l.exec.cluster = true
	check.Has(t, l.execInfo(), `"cluster":{"certificate-authority-data":"eA==","server":"https://api.example:6443"}`, "got")
}

func TestExecMissing(t *testing.T) {
	n := machine(t, "-- etc/k --\n"+withUser(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, installHint: "apt install \nawscli"}}`))
	n.Serve("api.example:6443", kubesim.New(kubesim.User{}))
	c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	_, err = c.Whoami(t.Context())
	wants(t, err, Unauthorized, "no credentials: cannot run aws", "apt install awscli")
}

func FuzzExecAnswer(f *testing.F) {
	f.Add([]byte(credentials("v1", map[string]any{"token": planted})))
	f.Add([]byte(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"clientCertificateData":"x","clientKeyData":"y"}}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		var got *credential
		var err error
		alloc.Most(t, 1000, len(out), func() {
			got, err = (&plugin{version: execGroup + "v1", argv: []string{"p"}}).read(out)
		})
		check.That(t, (got != nil) == (err == nil), "%v, %v", got, err)
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("it repeats the answer: %v", err)
		}
	})
}

// TestExecOfEKS: on EC2 gpuadm signs the token itself that the kubeconfigs of EKS's images have a
// program make, and runs nothing. What the program would do otherwise than by the machine's role is
// left to it.
func TestExecOfEKS(t *testing.T) {
	const ec2 = "-- sys/class/dmi/id/sys_vendor --\nAmazon EC2\n"
	// The arguments are those of awslabs/amazon-eks-ami:
	// nodeadm/internal/kubelet/kubeconfig.template.yaml, and, before its pull 2645,
	// templates/al2/runtime/kubelet-kubeconfig.
	const nodeadm, al2 = `command: aws, args: [eks, get-token, --cluster-name, gpus, --region, us-east-1]`,
		`command: /usr/bin/aws-iam-authenticator, args: [token, -i, gpus, --region, us-east-1]`
	for name, tt := range map[string]struct {
		machine, exec string
		ran           bool
	}{
		"nodeadm":             {ec2, nodeadm, false},
		"Amazon Linux 2":      {ec2, al2, false},
		"not on EC2":          {"", nodeadm, true},
		"another role":        {ec2, strings.Replace(nodeadm, "]", ", --role-arn, x]", 1), true},
		"a profile":           {ec2, nodeadm + ", env: [{name: AWS_PROFILE, value: x}]", true},
		"keys on the machine": {ec2 + "-- root/.aws/credentials --\n", nodeadm, true},
		"another program":     {ec2, strings.Replace(nodeadm, "command: aws", "command: aws-like", 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			n := machine(t, tt.machine+"-- etc/k --\n"+withUser(`{exec: {apiVersion: `+execGroup+`v1beta1, `+tt.exec+`}}`))
			now := n.Now()
			cloud := &cloudfake.Fake{
				Machine: cloudfake.Machine{Region: "us-east-1", Role: "node"},
				Cluster: cloudfake.Cluster{Name: "gpus"},
				Now:     func() time.Time { return now },
			}
			n.Serve("169.254.169.254", cloud.EC2())
			n.Serve("api.example:6443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := cloud.CheckToken(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")); err != nil {
					http.Error(w, err.Error(), http.StatusUnauthorized)
					return
				}
				fmt.Fprint(w, `{"status": {"userInfo": {"username": "system:node:gpu-1"}}}`)
			}))
			ran := false
			for _, program := range []string{"aws", "aws-iam-authenticator", "aws-like"} {
				n.Install(program, simhost.Program{
					Looks: func([]string) bool { return true },
					Run: func(*files.Files, []string) ([]byte, error) {
						ran = true
						return nil, errors.New("it was run")
					},
				})
			}

			c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
			must.OK(t, err)
			if _, err = c.Whoami(t.Context()); (err != nil) != tt.ran || ran != tt.ran {
				t.Errorf("a program was run: %t, and then: %v", ran, err)
			}
		})
	}
}
