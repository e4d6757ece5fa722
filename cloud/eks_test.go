// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

const eksServer = "https://api.example"

//go:embed testdata/eks.txtar
var eksFiles string

// eksMachine is a p5.48xlarge with an image of one's own: containerd, kubelet and EKS's plugin for
// ECR, and no nodeadm.
var eksMachine = joins.Machine + eksFiles

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
	n := must.Get(simhost.New([]byte(archive)))(t)
	s := kubesim.New(kubesim.User{})
	now := n.Now() // asked within a request, the node would wait for itself
	ca := kubesim.CA(now)
	c := &eksCloud{kube: s, n: n, name: "ip-10-0-1-2.ec2.internal", Fake: &cloudfake.Fake{
		Now: func() time.Time { return now },
		Machine: cloudfake.Machine{
			ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Image: "ami-0123456789abcdef0", Account: "123456789012",
			Name: "ip-10-0-1-2.ec2.internal", PrivateIP: "10.0.1.2", IPv6: "2600:1f18::2", MAC: "0a:ff:c0:00:00:01", Role: "node",
		},
		Cluster: cloudfake.Cluster{
			Name:        "gpus",
			Server:      eksServer,
			CA:          ca,
			Version:     "1.34",
			ServiceCIDR: "172.20.0.0/16",
		},
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
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			check.Equal(t, strings.Join(argv[1:], " "), "token eks --cluster gpus --region us-east-1", "kubelet would call")
			return []byte(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"by-exec"}}`), nil
		},
	})
	c.spec = specs.Of(t, join)
	return c
}

func (c *eksCloud) engine() *converge.Engine {
	return &converge.Engine{
		Stages:  []converge.Stage{Join(new(node.Session))},
		Spec:    c.spec,
		ThingOf: testThing,
		Version: "test",
	}
}

func (c *eksCloud) apply(t *testing.T) converge.Result {
	t.Helper()
	res, err := c.engine().Apply(t.Context(), c.n)
	must.That(t, err == nil, "cannot apply: %v\n%s", err, joins.Because(err))
	return res
}

func (c *eksCloud) read(t *testing.T, name string) string {
	t.Helper()
	data := must.Get(c.n.ReadFile(name))(t)
	return string(data)
}

const eksJoin = "[join]\nmethod = \"eks\"\ncluster = \"gpus\"\n"

// TestEKS joins a machine without nodeadm, and then asks the API server alone.
func TestEKS(t *testing.T) {
	for how, join := range map[string]string{"eks": eksJoin, "auto": "[join]\nmethod = \"auto\"\ncluster = \"gpus\"\n"} {
		t.Run(how, func(t *testing.T) {
			c := startEKS(t, eksMachine, join)
			first := c.n.Tree(converge.Home, "/run", "/proc")
			p, err := c.engine().Plan(t.Context(), c.n.View())
			must.That(t, err == nil && len(p.Cannot()) == 0 && len(c.n.Violations()) == 0, "plan: %v %+v %v", err, p.Cannot(), c.n.Violations())
			c.apply(t)
			check.That(t, strings.Contains(c.n.Units(), "kubelet.service enabled active"), "kubelet does not run:\n%s", c.n.Units())
			before, touched := len(c.Requests()), c.n.Touches()
			if res := c.apply(t); len(res.Made) > 0 || len(c.Requests()) != before || c.n.Touches() != touched {
				t.Errorf("a second apply: %v, asked %v", res.Made, c.Requests()[before:])
			}
			all := c.n.Tree()
			check.That(t, !strings.Contains(all, "k8s-aws-v1.") && !strings.Contains(all, "X-Amz-Signature"), "a token was left on the disk")
			must.Get(c.engine().Undo(t.Context(), c.n, "", nil))(t)
			check.None(t, cmp.Diff(first, c.n.Tree(converge.Home, "/run", "/proc")), "undo (-before +after)")
		})
	}
}

// TestEKSLeaves takes the machine out of its cluster only where that breaks no node: a kubelet that
// logs in by our tokens is not a node without them.
func TestEKSLeaves(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	must.OK(t, c.n.Mkdir("/var/lib/kubelet/pods", host.Attr{Mode: 0o755}))
	must.OK(t, c.n.Mkdir("/var/lib/kubelet/pods/0a1b", host.Attr{Mode: 0o755}))
	_, err := c.engine().Undo(t.Context(), c.n, "", nil)
	check.That(t, err != nil && strings.Contains(err.Error()+joins.Because(err), "0a1b"), "a pod runs: %v", err)
	check.Has(t, c.read(t, kubelet.Kubeconfig), "exec:", "the kubeconfig is")
	must.OK(t, c.n.Remove("/var/lib/kubelet/pods/0a1b"))
	_, err = c.engine().Undo(t.Context(), c.n, "", nil)
	check.That(t, err == nil, "%v", err)
}

// TestEKSAnotherMachine does not take an image's note of the machine that it was made from for its
// own.
func TestEKSAnotherMachine(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	c.Machine.ID, c.Machine.PrivateIP = "i-0fffffffffffffff0", "10.0.9.9"
	must.OK(t, c.n.WriteFile("/sys/class/dmi/id/board_asset_tag", []byte("i-0fffffffffffffff0\n"), host.Attr{Mode: 0o444}))
	c.apply(t)
	check.Has(t, c.read(t, kubelet.ConfigFile), "i-0fffffffffffffff0", "the provider id is another machine's:")
}

// TestEKSSays has the words where EKS does not take the machine.
func TestEKSSays(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*eksCloud)
		join string
		want string
	}{
		"unknown role": {func(c *eksCloud) { c.known.Store(false) }, eksJoin, "does not know this machine's role"},
		"its entry":    {func(c *eksCloud) { c.known.Store(false) }, eksJoin, "aws eks create-access-entry --region us-east-1 --cluster-name"},
		"another name": {func(c *eksCloud) { c.name = "ip-10-9-9-9.ec2.internal" }, eksJoin, `knows this machine as "system:node:ip-10-9-9-9.ec2.internal", and its kubelet would register as system:node:ip-10-0-1-2.ec2.internal`},
		"no cluster":   {func(*eksCloud) {}, "[join]\nmethod = \"eks\"\n", "which cluster to join"},
		"no binary":    {func(c *eksCloud) { must.OK(t, c.n.Remove("/usr/local/sbin/gpuadm")) }, eksJoin, "gpuadm apply --install"},
		"half stated":  {func(c *eksCloud) { c.Cluster.ServiceCIDR = "fd00:1::/108"; c.Machine.IPv6 = "" }, eksJoin, "no address of that family"},
	} {
		t.Run(name, func(t *testing.T) {
			at := startEKS(t, eksMachine, c.join)
			c.edit(at)
			_, err := at.engine().Apply(t.Context(), at.n)
			check.That(t, err != nil && strings.Contains(err.Error()+joins.Because(err), c.want), "%v\n%s", err, joins.Because(err))
			check.That(t, at.n.Touches() <= 0 || !strings.Contains(at.n.Tree(), "kubelet.conf"), "something was written")
		})
	}
}

// TestEKSStated asks EKS nothing that node.toml states, and follows the services' family.
func TestEKSStated(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	must.OK(t, c.n.WriteFile("/etc/gpuadm/ca.crt", c.Cluster.CA, host.Attr{Mode: 0o644}))
	c.spec = specs.Of(t, eksJoin+"server = \""+eksServer+"\"\nca_file = \"/etc/gpuadm/ca.crt\"\nservice_cidr = \"fd00:1::/108\"\n")
	c.apply(t)
	all := strings.Join(c.Requests(), "\n")
	check.That(t, !strings.Contains(all, "/clusters/"), "EKS was asked:\n%s", all)
	check.Has(t, c.read(t, kubelet.ConfigFile), "- fd00:1::a", "the DNS's address:")
	check.Has(t, c.read(t, kubelet.UnitFile), "--node-ip=2600:1f18::2", "the node's address:")
}

// TestEKSPodsGuessed: of a type that gpuadm does not know, and that EC2 does not describe, the plan
// says that the number is a guess, and which setting overrides it.
func TestEKSPodsGuessed(t *testing.T) {
	for kind, want := range map[string]bool{"p5.48xlarge": false, "p9.48xlarge": true} {
		c := startEKS(t, eksMachine, eksJoin+"kubelet_config = \"/etc/gpuadm/kubelet.yaml\"\n")
		c.Machine.Type = kind
		denied := cloudfake.Refused("denied")[1]
		denied.On = "ec2 DescribeInstanceTypes"
		c.Break(denied)
		notes := func(config string) string {
			must.OK(t, c.n.WriteFile("/etc/gpuadm/kubelet.yaml", []byte(config), host.Attr{Mode: 0o644}))
			p, err := c.engine().Plan(t.Context(), c.n)
			must.OK(t, err)
			return strings.Join(p.Notes, "\n")
		}

		got := notes("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n")
		check.That(t, strings.Contains(got, "110 pods at most, since no source says how many addresses a "+kind+" has") == want, "%s: noted: %s", kind, got)
		got = notes("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 58\n")
		check.That(t, !strings.Contains(got, "no source says"), "%s, stated: noted: %s", kind, got)
	}
}

// userDataOf is user data by which nodeadm would join.
func userDataOf(c cloudfake.Cluster) string {
	return fmt.Sprintf("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster:\n    name: %s\n    apiServerEndpoint: %s\n    certificateAuthority: %s\n    cidr: %s\n",
		c.Name, c.Server, base64.StdEncoding.EncodeToString(c.CA), c.ServiceCIDR)
}

// TestEKSProvider leaves the configuration of kubelet's plugins as an operator has written it, and
// has kubelet read it.
func TestEKSProvider(t *testing.T) {
	const theirs = "{\"kind\":\"CredentialProviderConfig\"}\n"
	c := startEKS(t, eksMachine, eksJoin)
	must.OK(t, c.n.WriteFile(instance.ECRConfig, []byte(theirs), host.Attr{Mode: 0o644}))
	c.apply(t)
	check.Equal(t, c.read(t, instance.ECRConfig), theirs, "it is now")
	check.Has(t, c.read(t, kubelet.UnitFile), "--image-credential-provider-config="+instance.ECRConfig, "kubelet is not told:")
}

// TestEKSUserData joins as the user data says, and asks EKS nothing.
func TestEKSUserData(t *testing.T) {
	c := startEKS(t, eksMachine, "[join]\nmethod = \"eks\"\n")
	c.Machine.UserData = userDataOf(c.Cluster)
	c.apply(t)
	check.That(t, !slices.ContainsFunc(c.Requests(), func(r string) bool {
		return strings.Contains(r, "/clusters/")
	}), "EKS was asked: %v", c.Requests())
}

// TestEKSWithoutECR: an image of one's own that lacks kubelet's plugin for ECR is refused before it
// joins: the CNI's image, which EKS has in ECR, would never come.
func TestEKSWithoutECR(t *testing.T) {
	const plugin = "-- etc/eks/image-credential-provider/ecr-credential-provider mode=0755 --\n"
	c := startEKS(t, strings.Replace(eksMachine, plugin, "", 1), "[join]\nmethod = \"eks\"\ncluster = \"gpus\"\n")
	_, err := c.engine().Apply(t.Context(), c.n)
	check.That(t, err != nil && strings.Contains(err.Error(), "ecr-credential-provider is not there") && strings.Contains(joins.Because(err), "cloud-provider-aws"),
		"%v\n%s", err, joins.Because(err))
	_, err = c.n.Lstat("/var/lib/kubelet/kubeconfig")
	check.That(t, err != nil, "the node has joined")
}
