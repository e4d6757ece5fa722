// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const (
	testToken  = "abcdef.s3cr3t0123456789"
	testServer = "https://api.example:6443"
	testID     = "0123456789abcdef0123456789abcdef"
)

// tokenKubeadmUnit is a unit as kubeadm's packages bring it.
const tokenKubeadmUnit = `
-- usr/lib/systemd/system/kubelet.service --
[Unit]
Description=kubelet
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
[Install]
WantedBy=multi-user.target
-- usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf --
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

// joinCluster is a simulated cluster, whose new nodes register a moment after they have their certificate.
type joinCluster struct {
	*kubesim.Server
	*kubesim.Signer
	boots  atomic.Int64
	gets   atomic.Int64
	stays  bool // no kubelet registers
	dead   bool // kubelet dies before it asks for anything
	n      *simhost.Node
	key    *ecdsa.PrivateKey
	silent map[string]string
}

func (c *joinCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if date := c.silent["date"]; date != "" {
		w.Header().Set("Date", date)
	}
	if r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes/gpu-1" && c.gets.Add(1) > 2 && !c.stays {
		c.PutNode(kubesim.Object{"metadata": kubesim.Object{"name": "gpu-1"}, "status": kubesim.Object{
			"conditions": []any{kubesim.Object{"type": "Ready", "status": "True"}},
			"nodeInfo": kubesim.Object{
				"machineID": testID, "systemUUID": "11111111-2222-3333-4444-555555555555",
				"bootID": fmt.Sprintf("00000000-0000-4000-8000-%012d", c.boots.Load()),
			},
		}})
	}
	c.Server.ServeHTTP(w, r)
}

// stage is the join, with a kubelet that acts while gpuadm waits for it, a few times.
func (c *joinCluster) stage(se *node.Session) converge.Stage {
	st := converge.Stage{
		Name:  "join",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) { return Wants(se, s, f) },
		Needs: func(s spec.Spec) facts.Needs {
			return node.StartupNeeds().And(facts.Needs{Driver: s.Node.GPULabels, Files: method.Files(s)})
		},
	}
	wants := st.Wants
	st.Wants = func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		list, err := wants(s, f)
		for _, w := range list {
			if t, is := w.Thing.(tokenFile); is {
				left := 3
				t.join.sleep = func(ctx context.Context, _ time.Duration) error {
					if left--; left < 0 {
						return context.DeadlineExceeded
					}
					c.bootstrap()
					return ctx.Err()
				}
			}
		}
		return list, err
	}
	return st
}

// bootstrap is what a kubelet does that runs by a bootstrap kubeconfig: it writes its kubeconfig at once, and its certificate when
// that was signed.
func (c *joinCluster) bootstrap() {
	u, _ := c.n.Unit(context.Background(), kubelet.Unit)
	data, err := c.n.ReadFile(bootstrapKubeconfig)
	if u.Active != "active" || err != nil || c.dead {
		return
	}
	var is struct {
		Current string `yaml:"current-context"`
		Users   []struct{ User struct{ Token string } }
	}
	if err := yaml.Unmarshal(data, &is); err != nil || len(is.Users) != 1 {
		panic(err)
	}
	token := is.Users[0].User.Token
	id, _, _ := strings.Cut(token, ".")
	if _, err := c.n.ReadFile(kubelet.CurrentCertificate); err == nil {
		id += "-renewed"
	}
	if c.key == nil {
		c.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	_ = c.n.WriteFile(kubelet.Kubeconfig, []byte("apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority: "+kubelet.ClusterCA+"\n    server: "+testServer+
		"\n  name: default-cluster\ncontexts:\n- context:\n    cluster: default-cluster\n    user: default-auth\n  name: default-context\ncurrent-context: default-context\nkind: Config\n"+
		"users:\n- name: default-auth\n  user:\n    client-certificate: "+kubelet.CurrentCertificate+"\n    client-key: "+kubelet.CurrentCertificate+"\n"), host.Attr{Mode: 0o600})
	csr, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: is.Current},
	}, c.key)
	request, _ := json.Marshal(map[string]any{"metadata": map[string]any{"name": "csr-" + id}, "spec": map[string]any{
		"signerName": kubeletSigner, "request": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}),
	}})
	_ = c.ask(token, http.MethodPost, requests, request)
	var answer struct{ Status struct{ Certificate []byte } }
	if json.Unmarshal(c.ask(token, http.MethodGet, requests+"/csr-"+id, nil), &answer) != nil || answer.Status.Certificate == nil {
		return
	}
	key, _ := x509.MarshalECPrivateKey(c.key)
	name := kubelet.PKI + "/kubelet-client-2026.pem"
	_ = c.n.WriteFile(name, append(answer.Status.Certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})...), host.Attr{Mode: 0o600})
	_ = c.n.Symlink(kubelet.CurrentCertificate, name)
}

// ask makes a request of kubelet's.
func (c *joinCluster) ask(token, method, path string, body []byte) []byte {
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	c.Server.ServeHTTP(w, r)
	return w.Body.Bytes()
}

type testJoin struct {
	*joinCluster
	spec spec.Spec
}

// startJoin boots a machine and a cluster that it may join; spec is what [join] says beside the usual.
func startJoin(t *testing.T, archive, more string) *testJoin {
	t.Helper()
	n, err := simhost.New([]byte(archive))
	if err != nil {
		t.Fatal(err)
	}
	s := kubesim.New(kubesim.Node("gpu-1"))
	c := &joinCluster{Server: s, Signer: s.Joinable(testServer, n.Now()), n: n}
	s.Token(testToken, kubesim.Bootstrapper("abcdef"))
	c.Publish(testToken)
	s.Serve("/api/v1/namespaces/kube-system/configmaps/kubelet-config", kubesim.Object{
		"kind": "ConfigMap", "data": kubesim.Object{"kubelet": "clusterDNS: [10.96.0.10]\nclusterDomain: cluster.test\nstaticPodPath: /not/ours\n"},
	})
	n.Serve("api.example:6443", c)
	j := &testJoin{joinCluster: c}
	if !strings.Contains(more, "ca_pin") && !strings.Contains(more, "ca_file") {
		more = "ca_pin = \"" + c.Pin() + "\"\n" + more
	}
	j.parse(t, more)
	j.boot(simhost.LoseNothing)
	return j
}

func (j *testJoin) parse(t *testing.T, more string) {
	t.Helper()
	var err error
	j.spec, err = spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n[join]\nmethod = \"token\"\nserver = \"" + testServer + "\"\ntoken_file = \"/etc/gpuadm/token\"\n" + more)})
	if err != nil {
		t.Fatal(err)
	}
}

func (j *testJoin) boot(loss simhost.Loss) {
	j.n.Boot(loss)
	var n int64
	id := j.n.BootID()
	fmt.Sscanf(id[strings.LastIndex(id, "-")+1:], "%d", &n)
	j.boots.Store(n)
}

func (j *testJoin) engine() *converge.Engine {
	return &converge.Engine{Stages: []converge.Stage{j.stage(new(node.Session)), joinedStage(new(node.Session))}, Spec: j.spec, ThingOf: testThing, Version: "test"}
}

// tree is the machine without our journal, and without what is random in a certificate.
func (j *testJoin) tree() string {
	units := strings.Split(j.n.Units(), "\n") // a unit that has run once is remembered
	units = slices.DeleteFunc(units, func(u string) bool {
		return strings.HasPrefix(u, "kubelet.service ") && strings.HasSuffix(u, " inactive")
	})
	return j.n.Tree(converge.Home, "/run", "/proc", kubelet.PKI+"/kubelet-client-2026.pem", kubelet.ClusterCA, "/etc/gpuadm") + strings.Join(units, "\n")
}

func (j *testJoin) apply(t *testing.T) converge.Result {
	t.Helper()
	res, err := j.engine().Apply(context.Background(), j.n)
	if err != nil {
		t.Fatalf("cannot apply: %v\n%s", err, joins.Because(err))
	}
	return res
}

func (j *testJoin) read(t *testing.T, name string) string {
	t.Helper()
	data, err := j.n.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestJoinByToken(t *testing.T) {
	for name, archive := range map[string]string{"own unit": joins.Machine, "kubeadm's unit": joins.Machine + tokenKubeadmUnit} {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, archive, "")
			first := j.tree()
			p, err := j.engine().Plan(context.Background(), j.n.View())
			if err != nil || len(p.Cannot()) > 0 || len(j.n.Violations()) > 0 {
				t.Fatalf("plan: %v %+v %v", err, p.Cannot(), j.n.Violations())
			}
			if asked := j.Asked(); len(asked) > 0 {
				t.Errorf("a plan has asked for a certificate: %v", asked)
			}
			res := j.apply(t)
			soon := func(all []converge.Change) []converge.Change { // a kubelet may be quicker than we look
				return slices.DeleteFunc(slices.Clone(all), func(c converge.Change) bool { return c.Kind == "registered" || c.Kind == "joined" })
			}
			if got, want := joins.Names(soon(res.Made)), joins.Names(soon(p.Changes)); got != want {
				t.Errorf("made and planned differ:\n%s", cmp.Diff(want, got))
			}
			if ca := j.read(t, kubelet.ClusterCA); ca != string(j.CA()) {
				t.Errorf("the CA is\n%s", ca)
			}
			cert := certificates([]byte(j.read(t, kubelet.CurrentCertificate)))
			if len(cert) != 1 || cert[0].Subject.CommonName != "system:node:gpu-1" {
				t.Errorf("the certificate is of %v", cert)
			}
			if i, err := j.n.Stat(kubelet.CurrentCertificate); err != nil || i.Mode.Perm() != 0o600 {
				t.Errorf("the key lies open: %v %v", i.Mode, err)
			}
			config := j.read(t, kubelet.ConfigFile)
			for _, want := range []string{"cgroupDriver: systemd", "- 10.96.0.10", "clusterDomain: cluster.test", "resolvConf: /run/systemd/resolve/resolv.conf", "rotateCertificates: true", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock", "mode: Webhook"} {
				if !strings.Contains(config, want) {
					t.Errorf("kubelet's configuration lacks %q:\n%s", want, config)
				}
			}
			if strings.Contains(config, "staticPodPath") {
				t.Errorf("taken over from the cluster: staticPodPath")
			}
			if u := j.n.Units(); !strings.Contains(u, "kubelet.service enabled active fresh") {
				t.Errorf("kubelet does not run: %s", u)
			}
			for _, gone := range []string{"/etc/gpuadm/token", bootstrapKubeconfig} {
				if _, err := j.n.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is still there", gone)
				}
			}
			j.Requests()
			if res := j.apply(t); res.Run != "" || len(res.Deferred) > 0 {
				t.Errorf("a second apply made %s, later %s", joins.Names(res.Made), joins.Names(res.Deferred))
			}
			if asked := j.Requests(); len(asked) > 1 {
				t.Errorf("a converged node asks %v", asked)
			}
			res, err = j.engine().Undo(context.Background(), j.n, "", nil)
			if err != nil {
				t.Fatal(err, joins.Because(err))
			}
			if diff := cmp.Diff(first, j.tree()); diff != "" {
				t.Errorf("after undo:\n%s", diff)
			}
		})
	}
}

// Undo says what is left in the cluster.
func TestUndoOfAJoin(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	var told []string
	e := j.engine()
	e.Tell = func(ev converge.Event) { told = append(told, string(ev.What)+" "+ev.Text) }
	if _, err := e.Undo(context.Background(), j.n, "all", nil); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if all := strings.Join(told, "\n"); !strings.Contains(all, "kubectl delete node gpu-1") {
		t.Errorf("undo does not say what is left:\n%s", all)
	}
	if _, err := j.n.Stat(kubelet.CurrentCertificate); err == nil {
		t.Error("the certificate is still there")
	}
}

// Law 8, for a join: power may be cut before any touch, requests that change something included.
func TestJoinSurvivesPowerCuts(t *testing.T) {
	whole := startJoin(t, joins.Machine, "")
	first := whole.tree()
	whole.apply(t)
	applied, made := whole.tree(), whole.n.Touches()
	if made < 20 {
		t.Fatalf("only %d touches", made)
	}
	for cut := range made {
		for _, loss := range []simhost.Loss{simhost.LoseAll, simhost.Random(uint32(cut))} {
			j := startJoin(t, joins.Machine, "")
			j.n.CutAt(cut)
			if _, err := j.engine().Apply(context.Background(), j.n); err == nil || !j.n.Off() {
				t.Fatalf("touch %d: not cut: %v", cut, err)
			}
			j.boot(loss)
			j.apply(t)
			if diff := cmp.Diff(applied, j.tree()); diff != "" {
				t.Fatalf("cut at touch %d, %v, applied again:\n%s", cut, loss, diff)
			}
			if _, err := j.engine().Undo(context.Background(), j.n, "all", nil); err != nil {
				t.Fatalf("cut at touch %d, %v: undo: %v", cut, loss, err)
			}
			if diff := cmp.Diff(first, j.tree()); diff != "" {
				t.Fatalf("cut at touch %d, %v, undone:\n%s", cut, loss, diff)
			}
		}
	}
}
