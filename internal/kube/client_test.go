// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// planted is a token that no output may repeat.
const planted = "planted-s3cret-token"

const server = "https://api.example:6443"

// withUser is a kubeconfig whose user says this, in flow YAML.
func withUser(user string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: here,
contexts: [{name: here, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "%s"}}],
users: [{name: u, user: %s}]}
`, server, user)
}

func machine(t *testing.T, files string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte(files))
	must.OK(t, err)
	return n
}

// naps notes how long a client would have slept, and lets the time pass at once.
type naps struct {
	took []time.Duration
	at   time.Time
}

func (s *naps) in(c *Client) {
	s.at = time.Unix(1e9, 0)
	c.clock = func() time.Time { return s.at }
	c.jitter = func() float64 { return 1 }
	c.sleep = func(ctx context.Context, d time.Duration) error {
		s.took, s.at = append(s.took, d), s.at.Add(d)
		return ctx.Err()
	}
}

// fixture is a client with the planted token of a server that knows it as kubelet gpu-1.
func fixture(t *testing.T) (*Client, *kubesim.Server, *naps) {
	t.Helper()
	sim := kubesim.New(kubesim.User{})
	sim.Token(planted, kubesim.Node("gpu-1"))
	sim.AddNode("gpu-1", map[string]string{"a": "b"}, kubesim.Object{"key": "k", "effect": "NoSchedule"})
	n := machine(t, "-- etc/k --\n"+withUser(`{token: "`+planted+`"}`))
	n.Serve("api.example:6443", sim)
	c, err := new(Clients).Do(n, From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	s := &naps{}
	s.in(c)
	return c, sim, s
}

// wants checks the kind of an error, and that it keeps the token to itself.
func wants(t *testing.T, err error, why Why, words ...string) *trouble.Error {
	t.Helper()
	e := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &e), "got %v (%T), want a *trouble.Error: %v", err, err, why)
	all := e.Error() + "\n" + strings.Join(e.Because, "\n") + "\n" + strings.Join(e.Try, "\n")
	check.That(t, errors.Is(err, why), "want %v: %s", why, all)
	check.Says(t, all, words...)
	check.That(t, !strings.Contains(all, "s3cret"), "the text repeats a secret:\n%s", all)
	check.That(t, strings.HasPrefix(e.Error(), "cannot ") && !strings.Contains(e.Error(), "\n"), "it reads badly: %s", e)
	return e
}

func TestNode(t *testing.T) {
	c, sim, _ := fixture(t)
	node, err := c.Node(t.Context(), "gpu-1")
	check.That(t, err == nil && node.Labels["a"] == "b" && node.Spec.Taints[0].Effect == "NoSchedule", "got %v, %v", node, err)
	check.That(t, c.server == server, "the server is %q", c.server)
	check.List(t, sim.Requests(), []string{"GET /api/v1/nodes/gpu-1"}, "one GET was to be made, not")
	for _, name := range []string{"", "../x", "a/b", "A", "a%2fb", strings.Repeat("a", 254)} {
		_, err := c.Node(t.Context(), name)
		wants(t, err, Refused, "is not the name of an object")
	}

	got := sim.Requests()
	check.That(t, got == nil, "a name that is none was asked for: %v", got)
}

func TestPatchNode(t *testing.T) {
	c, sim, _ := fixture(t)
	node := must.Get(c.Node(t.Context(), "gpu-1"))(t)
	label := func(key, value string) Patch {
		return Patch{"metadata": Patch{"resourceVersion": node.ResourceVersion, "labels": Patch{key: value}}}
	}
	got := must.Get(c.PatchNode(t.Context(), "gpu-1", label("nvidia.com/gpu", "")))(t)
	v, ok := got.Labels["nvidia.com/gpu"]
	check.That(t, ok && v == "", "got %v", got.Labels)
	sim.Requests()
	_, err := c.PatchNode(t.Context(), "gpu-1", label("x", "y")) // it is another version now
	check.That(t, wants(t, err, Conflict, "cannot patch the Node gpu-1", "409").Passing, "waiting helps")
	if got := sim.Requests(); len(got) != 1 {
		t.Errorf("a conflict was tried again: %v", got)
	}
	_, err = c.PatchNode(t.Context(), "gpu-1", Patch{"metadata": Patch{"labels": Patch{"x": "a b"}}})
	wants(t, err, Refused, "metadata.labels")
}

func TestForbidden(t *testing.T) {
	c, sim, _ := fixture(t)
	sim.AddNode("gpu-2", nil)
	_, err := c.PatchNode(t.Context(), "gpu-1", Patch{"spec": Patch{"taints": nil}})
	wants(t, err, Forbidden, "may not patch it", "not allowed to modify taints", "NodeRestriction", "set kubeconfig in [node]")
	_, err = c.PatchNode(t.Context(), "gpu-1", Patch{"metadata": Patch{"labels": Patch{"app.kubernetes.io/x": "y"}}})
	wants(t, err, Forbidden, "not allowed to modify labels: app.kubernetes.io/x")
	_, err = c.Node(t.Context(), "gpu-2")
	check.That(t, !wants(t, err, Forbidden, `User "system:node:gpu-1" cannot get`, "only reach its own node").Passing, "waiting does not help")
}

// TestDeniedByPolicy: a policy's denial is recognised by its code, no role is advised against it,
// and a try changes nothing.
func TestDeniedByPolicy(t *testing.T) {
	c, sim, _ := fixture(t)
	before := fmt.Sprint(sim.Node("gpu-1"))
	check.OK(t, c.TryLabel(t.Context(), "gpu-1", "example.com/x", "y"))
	sim.Admit(func(_ kubesim.User, old, made kubesim.Object) string {
		check.That(t, !reflect.DeepEqual(old, made), "the policy sees no change in %v", made)
		return "not this key [code-1]"
	})
	err := c.TryLabel(t.Context(), "gpu-1", "example.com/x", "y")
	e := wants(t, err, Forbidden, "not this key [code-1]", "admission policy")
	if !Denied(err, "code-1") || Denied(err, "code-2") || strings.Contains(strings.Join(e.Try, " "), "ClusterRole") {
		t.Errorf("denied by code-1: %v, by code-2: %v, try %q", Denied(err, "code-1"), Denied(err, "code-2"), e.Try)
	}
	err = c.TryLabel(t.Context(), "gpu-1", "node-restriction.kubernetes.io/x", "y")
	if wants(t, err, Forbidden, "not allowed to modify labels"); Denied(err, "") {
		t.Error("NodeRestriction's denial is taken for a policy's")
	}
	check.That(t, fmt.Sprint(sim.Node("gpu-1")) == before, "a try has changed the Node")
}

// TestRight: an error about a missing right names the right, which gpuadm knows by its request.
func TestRight(t *testing.T) {
	c, sim, _ := fixture(t)
	sim.Fail(kubesim.Fault{Times: -1, Status: 403})
	pod := Pod{Meta: Meta{Namespace: "ml", Name: "train"}}
	for right, ask := range map[string]func() error{
		"get and patch nodes and nodes/status": func() error { _, err := c.Node(t.Context(), "gpu-1"); return err },
		"create events":                        func() error { return c.Event(t.Context(), "gpu-1", Event{Reason: "R"}) },
		"list pods":                            func() error { _, err := c.Pods(t.Context(), "gpu-1"); return err },
		"create pods/eviction":                 func() error { return c.Evict(t.Context(), pod) },
		"list resourceslices.resource.k8s.io":  func() error { _, err := c.Slices(t.Context(), "gpu-1"); return err },
	} {
		wants(t, ask(), Forbidden, `the identity (the token in the kubeconfig) may not`, "give it a ClusterRole with the right to "+right)
	}
}

// TestPatchStatus: the status and the labels change as one, and the spec stays.
func TestPatchStatus(t *testing.T) {
	c, sim, _ := fixture(t)
	node, err := c.PatchStatus(t.Context(), "gpu-1", Patch{
		"status": Patch{"conditions": []Condition{{
			Type:   "GPUReady",
			Status: "True",
			Reason: "R",
		}}}, "metadata": Patch{"labels": Patch{"b": "c"}},
		"spec": Patch{"taints": nil},
	})
	must.OK(t, err)
	check.That(t, len(node.Status.Conditions) == 2 && node.Status.Conditions[0].Type == "GPUReady" && node.Labels["b"] == "c" && len(node.Spec.Taints) == 1, "got %+v", node)
	check.List(t, sim.Requests(), []string{"PATCH /api/v1/nodes/gpu-1/status"}, "got")
	sim.DeleteNode("gpu-1")
	_, err = c.PatchStatus(t.Context(), "gpu-1", nil)
	wants(t, err, Missing, "cannot patch the status of the Node gpu-1", `nodes "gpu-1" not found`)
}

func TestEvent(t *testing.T) {
	c, sim, _ := fixture(t)
	ev := Event{
		Reason:  "GPUReady",
		Message: strings.Repeat("é", 2000),
		Type:    "Warning",
	}
	now := c.now()
	c.now = func() time.Time { return now }
	// The first answer is lost on the way: the Event is there once all the same.
	sim.Fail(kubesim.Fault{On: "POST", Status: 500, Lost: true})
	must.OK(t, c.Event(t.Context(), "gpu-1", ev))
	must.That(t, len(sim.Events()) == 1, "%d events", len(sim.Events()))
	got := sim.Events()[0]
	about := got["involvedObject"].(map[string]any)
	check.That(t, about["uid"] == "gpu-1" && about["apiVersion"] == "v1" && got["type"] == "Warning" && got["count"] == 1.0, "got %v", got)
	text := got["message"].(string)
	check.That(t, len(text) <= maxNote && strings.HasSuffix(text, "é..."), "the message has %d bytes", len(text))
	if ev := got["metadata"].(map[string]any); ev["namespace"] != "default" {
		t.Errorf("it is in %v", ev["namespace"])
	}
	// What is there already at the first try is another's.
	wants(t, c.Event(t.Context(), "gpu-1", ev), Conflict)
}

func TestWhoamiPodsGet(t *testing.T) {
	c, sim, _ := fixture(t)
	is, err := c.Whoami(t.Context())
	check.That(t, err == nil && is.Username == "system:node:gpu-1" && slices.Contains(is.Groups, "system:nodes"), "got %v, %v", is, err)
	for _, node := range []string{"gpu-1", "gpu-2"} {
		sim.AddPod(kubesim.Object{"metadata": kubesim.Object{"name": "on-" + node}, "spec": kubesim.Object{"nodeName": node}})
	}
	pods, err := c.Pods(t.Context(), "gpu-1")
	check.That(t, err == nil && len(pods) == 1 && pods[0].Name == "on-gpu-1", "got %v, %v", pods, err)
	_, err = c.Pods(t.Context(), "gpu-2,spec.x=y")
	wants(t, err, Refused)
	version, err := c.Version(t.Context())
	check.That(t, err == nil && version == "v1.35.4", "got %q, %v", version, err)
}

func TestSlices(t *testing.T) {
	c, sim, _ := fixture(t)
	if got, err := c.Slices(t.Context(), "gpu-1"); got != nil || err != nil {
		t.Errorf("no such API, and got %v, %v", got, err)
	}
	sim.AddSlice("v1", nil)
	if got, err := c.Slices(t.Context(), "gpu-1"); got == nil || len(got) != 0 || err != nil {
		t.Errorf("no slices, and got %v, %v", got, err)
	}
	slice := func(driver, pool string, generation, of, devices int) kubesim.Object {
		return kubesim.Object{"spec": kubesim.Object{
			"nodeName": "gpu-1", "driver": driver, "devices": make([]kubesim.Object, devices),
			"pool": kubesim.Object{"name": pool, "generation": generation, "resourceSliceCount": of},
		}}
	}

	for _, s := range []kubesim.Object{
		slice("gpu.nvidia.com", "a", 2, 2, 4), slice("gpu.nvidia.com", "a", 1, 1, 100), slice("gpu.nvidia.com", "a", 2, 2, 3),
		slice("gpu.nvidia.com", "b", 1, 2, 50), slice("other.example", "a", 7, 3, 1),
	} {
		sim.AddSlice("v1", s)
	}

	got, err := c.Slices(t.Context(), "gpu-1")
	if want := map[string]int{"gpu.nvidia.com": 7, "other.example": 0}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
}

// TestLooksOnly wants a client of Ask to change nothing, whatever is called.
func TestLooksOnly(t *testing.T) {
	sim := kubesim.New(kubesim.Admin())
	sim.AddNode("gpu-1", nil)
	n := machine(t, "-- etc/k --\n"+withUser("{}"))
	n.Serve("api.example:6443", sim)
	c, err := new(Clients).Ask(n.View(), From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	if _, err := c.Node(t.Context(), "gpu-1"); err != nil {
		t.Error(err)
	}
	if _, err := c.Whoami(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = c.PatchNode(t.Context(), "gpu-1", Patch{"spec": Patch{"taints": nil}})
	wants(t, err, Refused, "internal error")
	wants(t, c.Event(t.Context(), "gpu/1", Event{}), Refused, "is not the name of an object")
}

func TestRootFolder(t *testing.T) {
	n := machine(t, "-- etc/k --\n"+withUser("{}")+"-- sim.toml --\nlive = false\n")
	_, err := new(Clients).Do(n, From{Kubeconfig: "/etc/k"})
	later := (host.Later{})
	check.That(t, errors.As(err, &later) && later.Until == "first boot", "got %v", err)
	e := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &e) && e.Passing, "got %v", err)
}

// TestRedirect wants the token kept from the target of a redirect.
func TestRedirect(t *testing.T) {
	c, sim, _ := fixture(t)
	n := c.login.view.(*simhost.Node)
	n.Serve("api.example:6443", http.RedirectHandler("https://evil.example/x", http.StatusFound))
	n.Serve("evil.example", sim)
	_, err := c.Node(t.Context(), "gpu-1")
	wants(t, err, Refused, "redirects (302)")
	got := sim.Requests()
	check.That(t, got == nil, "it was followed: %v", got)
}
