// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/kube/kubesim"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/cloudfake"
)

const eksServer = "https://api.example"

// eksMachine is a p5.48xlarge with an image of one's own: containerd, kubelet and EKS's plugin for ECR, and no nodeadm.
const eksMachine = testMachine + `-- sys/class/dmi/id/sys_vendor --
Amazon EC2
-- sys/class/dmi/id/board_asset_tag --
i-0abcdef1234567890
-- sys/devices/system/cpu/online --
0-191
-- proc/meminfo --
MemTotal:       2097152000 kB
-- etc/eks/image-credential-provider/config.json --
{}
-- usr/local/sbin/gpuadm mode=0755 size=1000 --
`

// eksCloud is a machine of EC2's, its cloud, and its cluster's API server.
type eksCloud struct {
	*cloudfake.Fake
	kube  *kubesim.Server
	n     *simhost.Node
	spec  spec.Spec
	known atomic.Bool // the cluster knows the machine's role
	gets  atomic.Int64
	name  string // that the cluster gives the role
}

func (c *eksCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if c.known.Load() && c.CheckToken(token) == nil {
		c.kube.Token(token, kubesim.Node(c.name))
	}
	if r.URL.Path == "/api/v1/nodes/"+c.Machine.Name && c.gets.Add(1) == 1 { // its kubelet was quick
		c.kube.PutNode(kubesim.Object{"metadata": kubesim.Object{"name": c.Machine.Name}})
	}
	c.kube.ServeHTTP(w, r)
}

func startEKS(t *testing.T, archive, join string) *eksCloud {
	t.Helper()
	// AWS's SDK signs by the real clock.
	archive = strings.Replace(archive, "2026-02-03T04:05:06Z", time.Now().UTC().Format(time.RFC3339), 1)
	n, err := simhost.New([]byte(archive))
	if err != nil {
		t.Fatal(err)
	}
	s := kubesim.New(kubesim.User{})
	now := n.Now() // asked within a request, the node would wait for itself
	ca := s.Joinable(eksServer, now).CA()
	c := &eksCloud{kube: s, n: n, name: "ip-10-0-1-2.ec2.internal", Fake: &cloudfake.Fake{
		Now: func() time.Time { return now },
		Machine: cloudfake.Machine{
			ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Image: "ami-0123456789abcdef0", Account: "123456789012",
			Name: "ip-10-0-1-2.ec2.internal", PrivateIP: "10.0.1.2", IPv6: "2600:1f18::2", MAC: "0a:ff:c0:00:00:01", Role: "node",
		},
		Cluster: cloudfake.Cluster{Name: "gpus", Server: eksServer, CA: ca, Version: "1.34", ServiceCIDR: "172.20.0.0/16"},
	}}
	c.known.Store(true)
	n.Serve("169.254.169.254", c.EC2())
	for _, service := range []string{"eks", "ec2", "sts"} {
		n.Serve(service+".us-east-1.amazonaws.com", c.API())
	}
	n.Serve("api.example", c)
	n.Serve("api.example:443", c)
	s.Token("by-exec", kubesim.Node(c.Machine.Name))
	n.Install("gpuadm", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(_ *host.Files, argv []string) ([]byte, error) {
			if got := strings.Join(argv[1:], " "); got != "token eks --cluster gpus --region us-east-1" {
				t.Errorf("kubelet would call %s", got)
			}
			return []byte(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"by-exec"}}`), nil
		},
	})
	c.spec = joinSpec(t, join)
	return c
}

func joinSpec(t *testing.T, join string) spec.Spec {
	t.Helper()
	s, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n" + join)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *eksCloud) engine() *converge.Engine {
	return &converge.Engine{Stages: []converge.Stage{Join(new(Session))}, Spec: c.spec, ThingOf: testThing, Version: "test"}
}

func (c *eksCloud) apply(t *testing.T) converge.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // not the minutes that a real kubelet is given
	defer cancel()
	res, err := c.engine().Apply(ctx, c.n)
	if err != nil {
		t.Fatalf("cannot apply: %v\n%s", err, joinBecause(err))
	}
	return res
}

func (c *eksCloud) read(t *testing.T, name string) string {
	t.Helper()
	data, err := c.n.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

const eksJoin = "[join]\nhow = \"eks\"\ncluster = \"gpus\"\n"

// TestEKS joins a machine without nodeadm, and then asks nobody but the API server any more.
func TestEKS(t *testing.T) {
	for how, join := range map[string]string{"eks": eksJoin, "auto": "[join]\nhow = \"auto\"\ncluster = \"gpus\"\n"} {
		t.Run(how, func(t *testing.T) {
			c := startEKS(t, eksMachine, join)
			first := c.n.Tree(converge.Home, "/run", "/proc")
			p, err := c.engine().Plan(t.Context(), c.n.View())
			if err != nil || len(p.Cannot()) > 0 || len(c.n.Violations()) > 0 {
				t.Fatalf("plan: %v %+v %v", err, p.Cannot(), c.n.Violations())
			}
			c.apply(t)
			if !strings.Contains(c.n.Units(), "kubelet.service enabled active") {
				t.Errorf("kubelet does not run:\n%s", c.n.Units())
			}
			before, stood := len(c.Requests()), c.n.Touches()
			if res := c.apply(t); len(res.Made) > 0 || len(c.Requests()) != before || c.n.Touches() != stood {
				t.Errorf("a second apply: %v, asked %v", res.Made, c.Requests()[before:])
			}
			if all := c.n.Tree(); strings.Contains(all, "k8s-aws-v1.") || strings.Contains(all, "X-Amz-Signature") {
				t.Error("a token was left on the disk")
			}
			if _, err := c.engine().Undo(t.Context(), c.n, "", nil); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(first, c.n.Tree(converge.Home, "/run", "/proc")); d != "" {
				t.Errorf("undo (-before +after)\n%s", d)
			}
		})
	}
}

// TestEKSAnotherMachine does not take an image's note of the machine that it was made from for its own.
func TestEKSAnotherMachine(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	c.Machine.ID, c.Machine.PrivateIP = "i-0fffffffffffffff0", "10.0.9.9"
	if err := c.n.WriteFile("/sys/class/dmi/id/board_asset_tag", []byte("i-0fffffffffffffff0\n"), host.Attr{Mode: 0o444}); err != nil {
		t.Fatal(err)
	}
	c.apply(t)
	if got := c.read(t, kubeletConfig); !strings.Contains(got, "i-0fffffffffffffff0") {
		t.Errorf("the provider id is another machine's:\n%s", got)
	}
}

// TestEKSSays has the words where EKS does not take the machine.
func TestEKSSays(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*eksCloud)
		join string
		want string
	}{
		"unknown role": {func(c *eksCloud) { c.known.Store(false) }, eksJoin, "does not know this machine's role"},
		"another name": {func(c *eksCloud) { c.name = "ip-10-9-9-9.ec2.internal" }, eksJoin, `takes this machine for "system:node:ip-10-9-9-9.ec2.internal", and its kubelet would be system:node:ip-10-0-1-2.ec2.internal`},
		"no cluster":   {func(*eksCloud) {}, "[join]\nhow = \"eks\"\n", "which cluster to join"},
		"no binary":    {func(c *eksCloud) { eksMust(t, c.n.Remove(eksPlugin)) }, eksJoin, "gpuadm apply --install"},
		"half stated":  {func(c *eksCloud) { c.Cluster.ServiceCIDR = "fd00:1::/108"; c.Machine.IPv6 = "" }, eksJoin, "no address of that family"},
	} {
		t.Run(name, func(t *testing.T) {
			at := startEKS(t, eksMachine, c.join)
			c.edit(at)
			_, err := at.engine().Apply(t.Context(), at.n)
			if err == nil || !strings.Contains(err.Error()+joinBecause(err), c.want) {
				t.Errorf("%v\n%s", err, joinBecause(err))
			}
			if at.n.Touches() > 0 && strings.Contains(at.n.Tree(), "kubelet.conf") {
				t.Error("something was written")
			}
		})
	}
}

// TestEKSStated asks EKS nothing that node.toml states, and follows the services' family.
func TestEKSStated(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	if err := c.n.WriteFile("/etc/gpuadm/ca.crt", c.Cluster.CA, host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	c.spec = joinSpec(t, eksJoin+"server = \""+eksServer+"\"\nca_file = \"/etc/gpuadm/ca.crt\"\nservice_cidr = \"fd00:1::/108\"\n")
	c.apply(t)
	if all := strings.Join(c.Requests(), "\n"); strings.Contains(all, "/clusters/") {
		t.Errorf("EKS was asked:\n%s", all)
	}
	if got := c.read(t, kubeletConfig); !strings.Contains(got, "- fd00:1::a") {
		t.Errorf("the DNS's address:\n%s", got)
	}
	if got := c.read(t, kubeletUnitFile); !strings.Contains(got, "--node-ip=2600:1f18::2") {
		t.Errorf("the node's address:\n%s", got)
	}
}

func TestEKSMaxPods(t *testing.T) {
	// Published by EKS: templates/shared/runtime/eni-max-pods.txt has 737 for p4d and 58 for g4dn.4xlarge's smaller sister g5.xlarge.
	for _, c := range []struct{ enis, ips, pods int }{{15, 50, 737}, {4, 15, 58}, {2, 50, 100}, {0, 0, 110}, {1, 1, 110}} {
		f := startFacts(c.enis, c.ips)
		if got := eksMaxPods(*f.Cluster); got != c.pods {
			t.Errorf("%d ENIs of %d addresses: %d pods, not %d", c.enis, c.ips, got, c.pods)
		}
	}
}

func startFacts(enis, ips int) facts.Facts {
	f := facts.Facts{Cluster: &instance.Cluster{}}
	f.Cluster.ENIs, f.Cluster.IPv4PerENI = enis, ips
	return f
}

// TestLikeNodeadm compares every key that nodeadm writes with what we write for the same machine and cluster. What nodeadm
// writes is put down from its documented keys (kubelet 1.34, p5.48xlarge with 2 interfaces of 50 addresses); each difference
// has its reason.
func TestLikeNodeadm(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	reasons := map[string]string{
		"config.address":                         "kubelet's default",
		"config.authentication.webhook.cacheTTL": "kubelet's default",
		"config.authorization.webhook":           "kubelet's defaults",
		"config.cgroupRoot":                      "kubelet's default",
		"config.featureGates":                    "on by default in the kubelets that have them (1.12, 1.34, 1.35); an older one does not start with a gate that it does not know",
		"config.hairpinMode":                     "nothing has read it since dockershim went",
		"config.kubeReservedCgroup":              "kubelet does not start where the cgroup is not there, and an image of one's own has no runtime.slice",
		"config.systemReservedCgroup":            "the same",
		"config.logging":                         "kubelet's default is 0; who debugs raises it by kubelet_config",
		"config.protectKernelDefaults":           "kubelet does not start where a sysctl differs; EKS's images set them",
		"config.readOnlyPort":                    "kubelet's default in a config file",
		"config.shutdownGracePeriod":             "needs logind's InhibitDelayMaxSec to be longer, which EKS's images set",
		"config.shutdownGracePeriodCriticalPods": "the same",
		"config.+rotateCertificates":             "stated, since all kubelets of ours rotate but EKS's",
		"flags.config":                           "the file lies where kubeadm has it",
		"flags.kubeconfig":                       "the file lies where kubeadm has it",
		"flags.runtime-cgroups":                  "an image of one's own has no runtime.slice",
		"kubeconfig.clusters":                    "other names, same server and CA: checked below",
		"kubeconfig.contexts":                    "other names",
		"kubeconfig.current-context":             "another name",
		"kubeconfig.users":                       "gpuadm in place of the AWS CLI: checked below",
		"config.+resolvConf":                     "the test's image has systemd-resolved's stub, which EKS's images have not",
	}
	used := map[string]bool{}
	compare := func(at string, theirs, ours any) { compareKeys(t, at, theirs, ours, reasons, used) }

	var theirs, ours table
	eksMust(t, json.Unmarshal([]byte(eksFile(t, "kubelet-config.json")), &theirs))
	eksMust(t, yaml.Unmarshal([]byte(c.read(t, kubeletConfig)), &ours))
	round, err := json.Marshal(ours)
	eksMust(t, err)
	ours = nil
	eksMust(t, json.Unmarshal(round, &ours))
	compare("config", theirs, ours)

	compare("flags", flagsOf(eksFile(t, "environment")), flagsOf(c.read(t, kubeletUnitFile)))

	theirs, ours = nil, nil
	eksMust(t, yaml.Unmarshal([]byte(eksFile(t, "kubeconfig")), &theirs))
	eksMust(t, yaml.Unmarshal([]byte(c.read(t, kubeletKubeconfig)), &ours))
	compare("kubeconfig", theirs, ours)
	for _, keys := range [][]string{{"server"}, {"certificate-authority"}} {
		a, b := at(listOf(theirs["clusters"])[0], "cluster", keys[0]), at(listOf(ours["clusters"])[0], "cluster", keys[0])
		if a != b {
			t.Errorf("%s: nodeadm has %v, we have %v", keys[0], a, b)
		}
	}
	if got := c.read(t, clusterCA); got != string(c.Cluster.CA) {
		t.Errorf("another CA: %s", got)
	}
	for at := range reasons {
		if !used[at] {
			t.Errorf("a reason without a difference: %s", at)
		}
	}
}

// compareKeys compares two tables, and takes no difference without a reason. A key that only we have has a + before it.
func compareKeys(t *testing.T, path string, theirs, ours any, reasons map[string]string, used map[string]bool) {
	t.Helper()
	if reasons[path] != "" {
		if !cmp.Equal(theirs, ours) {
			used[path] = true
		}
		return
	}
	a, aIs := theirs.(table)
	b, bIs := ours.(table)
	if !aIs || !bIs {
		if !cmp.Equal(theirs, ours) {
			t.Errorf("%s: nodeadm has %v, we have %v, and no reason is given", path, theirs, ours)
		}
		return
	}
	for _, key := range sorted(a) {
		compareKeys(t, path+"."+key, a[key], b[key], reasons, used)
	}
	for _, key := range sorted(b) {
		if _, both := a[key]; !both {
			compareKeys(t, path+".+"+key, nil, b[key], reasons, used)
		}
	}
}

// flagsOf are the flags in a text, as a table.
func flagsOf(text string) table {
	flags := table{}
	for _, word := range strings.Fields(text) {
		_, word, _ = strings.Cut(" "+word, "--")
		if name, value, ok := strings.Cut(word, "="); ok {
			flags[name] = value
		}
	}
	return flags
}

func eksFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/nodeadm/" + name)
	eksMust(t, err)
	return string(data)
}

func eksMust(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// userDataOf is user data by which nodeadm would join.
func userDataOf(c cloudfake.Cluster) string {
	return fmt.Sprintf("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster:\n    name: %s\n    apiServerEndpoint: %s\n    certificateAuthority: %s\n    cidr: %s\n",
		c.Name, c.Server, base64.StdEncoding.EncodeToString(c.CA), c.ServiceCIDR)
}

// TestEKSUserData joins as the user data says, and asks EKS nothing.
func TestEKSUserData(t *testing.T) {
	c := startEKS(t, eksMachine, "[join]\nhow = \"eks\"\n")
	c.Machine.UserData = userDataOf(c.Cluster)
	c.apply(t)
	if slices.ContainsFunc(c.Requests(), func(r string) bool { return strings.Contains(r, "/clusters/") }) {
		t.Errorf("EKS was asked: %v", c.Requests())
	}
}
