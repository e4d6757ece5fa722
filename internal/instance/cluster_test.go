// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
)

func asInstance() *instance.Instance {
	return &instance.Instance{
		ID:     "i-0abcdef1234567890",
		Type:   "p5.48xlarge",
		Region: "us-east-1",
	}
}

// TestAskCluster asks EKS and EC2, as the role, and shows what was asked.
func TestAskCluster(t *testing.T) {
	f, n := in(t, ec2())
	c := must.Get(instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{Name: "gpus"}))(t)
	want := &instance.Cluster{
		Name: "gpus", Server: "https://ABC.gr7.us-east-1.eks.amazonaws.com", CA: []byte(ca), ServiceCIDR: "172.20.0.0/16", DNS: []string{"172.20.0.10"},
		Version: "1.34", From: "DescribeCluster", PrivateDNS: "ip-10-0-1-2.ec2.internal", ENIs: 2, IPv4PerENI: 50,
	}
	check.None(t, cmp.Diff(want, c), "(-want +got)")
	golden(t, "ask/eks", strings.Join(f.Requests(), "\n")+"\n")
}

// TestAskClusterIPv6 has a cluster of IPv6.
func TestAskClusterIPv6(t *testing.T) {
	f, n := in(t, ec2())
	f.Cluster.ServiceCIDR = "fd30:1c53:5f8a::/108"
	c, err := instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{
		Name:     "gpus",
		NodeName: "x",
	})
	check.That(t, err == nil && c.ServiceCIDR == "fd30:1c53:5f8a::/108" && c.DNS[0] == "fd30:1c53:5f8a::a", "%+v %v", c, err)
}

// TestAskClusterNever has all that is needed nearer than AWS: nothing is asked.
func TestAskClusterNever(t *testing.T) {
	f, n := in(t, ec2())
	i := must.Get(instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"}))(t)
	before := len(f.Requests())
	c, err := instance.AskCluster(t.Context(), n.View(), i, instance.ClusterRef{NodeName: "gpu-1"})
	check.That(t, err == nil && c.From == "user data" && c.Server != "", "%+v %v", c, err)
	got := f.Requests()[before:]
	check.That(t, len(got) == 0, "asked: %v", got)
	c, err = instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{
		Name:     "gpus",
		Stated:   true,
		NodeName: "gpu-1",
	})
	check.That(t, err == nil && c.Name == "gpus" && c.From == "node.toml", "%+v %v", c, err)
	got = f.Requests()[before:]
	check.That(t, len(got) == 0, "asked, though node.toml states it: %v", got)
	// Of another cluster than the user data's, EKS is asked.
	_, err = instance.AskCluster(t.Context(), n.View(), i, instance.ClusterRef{
		Name:     "others",
		NodeName: "gpu-1",
	})
	check.That(t, err != nil, "the user data's cluster was taken for another")
}

// TestAskClusterPods: how many addresses a known type has is known without a question; of others
// EC2 is asked, and that it does not tell is not a failure.
func TestAskClusterPods(t *testing.T) {
	stated := instance.ClusterRef{Name: "gpus", Stated: true, NodeName: "gpu-1"}
	for kind, c := range map[string]struct {
		ref         instance.ClusterRef
		denied      bool
		enis, asked int
	}{
		"p5.48xlarge": {ref: stated, enis: 2},
		"g5.xlarge":   {ref: instance.ClusterRef{Name: "gpus"}, enis: 4},
		"p9.48xlarge": {ref: instance.ClusterRef{Name: "gpus"}, enis: 2, asked: 1},
		"p9.96xlarge": {ref: instance.ClusterRef{Name: "gpus"}, denied: true, asked: 1},
	} {
		f, n := in(t, ec2())
		if c.denied {
			x := cloudfake.Refused("denied")[1]
			x.On = "ec2 DescribeInstanceTypes"
			f.Break(x)
		}

		i := asInstance()
		i.Type = kind
		got, err := instance.AskCluster(t.Context(), n.View(), i, c.ref)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		asked := strings.Count(strings.Join(f.Requests(), "\n"), "DescribeInstanceTypes")
		check.That(t, got.ENIs == c.enis && asked == c.asked, "%s: %d interfaces after %d questions, want %d after %d", kind, got.ENIs, asked, c.enis, c.asked)
	}
}

// TestAskClusterElsewhere: EC2 is asked in the machine's region, wherever the cluster is, and the
// error says so.
func TestAskClusterElsewhere(t *testing.T) {
	f, n := in(t, ec2())
	f.Break(cloudfake.Refused("denied")...)
	_, err := instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{
		Name:   "gpus",
		Region: "eu-west-1",
		Stated: true,
	})
	check.Has(t, said(t, err), "about i-0abcdef1234567890 in us-east-1: ", "EC2 refuses:")
}

// TestClusterInTheMaking: a cluster that is not active yet has no endpoint, and may be in another
// region than the operator's own.
func TestClusterInTheMaking(t *testing.T) {
	f, n := in(t, ec2())
	f.Break(cloudfake.Fault{
		On:   "eks ",
		What: "body",
		Body: `{"cluster": {"name": "gpus", "status": "CREATING"}}`,
	})
	_, err := instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{Name: "gpus"})
	const waits = "aws eks wait cluster-active --name gpus --region us-east-1\n"
	check.Has(t, said(t, err), waits, "a cluster in the making:")
}

// TestKept keeps what was found out, for this machine and this cluster alone.
func TestKept(t *testing.T) { synctest.Test(t, testKept) }

func testKept(t *testing.T) {
	f, n := in(t, ec2())
	i := asInstance()
	first := must.Get(instance.AskCluster(t.Context(), n.View(), i, instance.ClusterRef{Name: "gpus"}))(t)
	data := must.Get(first.Keep(i, ""))(t)
	const at = "/etc/cluster.json"
	write := func(data []byte) {
		t.Helper()
		must.OK(t, n.WriteFile(at, data, host.Attr{Mode: 0o644}))
	}

	write(data)
	ref := instance.ClusterRef{Name: "gpus", Kept: at}
	asked := func(i *instance.Instance, ref instance.ClusterRef) (*instance.Cluster, int) {
		before := len(f.Requests())
		c, _ := instance.AskCluster(t.Context(), n.View(), i, ref)
		return c, len(f.Requests()) - before
	}

	got, requests := asked(i, ref)
	first.From = "kept"
	d := cmp.Diff(first, got)
	check.That(t, d == "" && requests == 0, "%d requests (-want +got)\n%s", requests, d)
	got, requests = asked(i, instance.ClusterRef{Kept: at})
	check.That(t, got != nil && requests == 0, "without a name: %v, %d requests", got, requests)
	other := asInstance()
	other.ID = "i-0fffffffffffffff0"
	for name, requests := range map[string]int{
		"another machine": second(asked(other, ref)), "another cluster": second(asked(i, instance.ClusterRef{Name: "others", Kept: at})),
		"another region": second(asked(i, instance.ClusterRef{Name: "gpus", Region: "eu-west-1", Kept: at})),
	} {
		check.That(t, requests != 0, "%s was taken for the one that was kept", name)
	}

	write([]byte(strings.Replace(string(data), "https://", "http://", 1)))
	_, requests = asked(i, ref)
	check.That(t, requests != 0, "a file that was changed is taken")
}

func second[T any](_ T, n int) int { return n }

// TestAskClusterFails shows each failure of AWS in its words.
func TestAskClusterFails(t *testing.T) {
	var all strings.Builder
	for _, name := range []string{
		"throttled", "denied", "missing", "expired", "skewed", "failing", "EC2 throttled", "EC2 denied", "EC2 missing", "EC2 expired",
		"other region", "no such region", "other partition", "no role", "role broken", "no route", "hop limit", "clock", "html", "huge", "no name", "odd region", "no DNS name",
	} {
		synctest.Test(t, func(t *testing.T) {
			f, n := in(t, ec2())
			i, ref := asInstance(), instance.ClusterRef{Name: "gpus"}
			switch name {
			case "other region":
				ref.Region = "eu-west-1"
				n.Serve("eks.eu-west-1.amazonaws.com", f.API())
				f.Break(cloudfake.Refused("missing")...)
			case "no such region":
				ref.Region = "us-east-9"
			case "other partition":
				ref.Region = "us-iso-east-1"
			case "no role":
				f.Machine.Role = ""
			case "role broken":
				f.Break(cloudfake.Fault{
					On:   "GET /latest/meta-data/iam/security-credentials/node",
					What: "body",
					Body: `{"Code":"AssumeRoleUnauthorizedAccess","Message":"EC2 cannot assume the role"}`,
				})
			case "no route":
				f.Break(cloudfake.Fault{On: "eks ", What: "drop"})
			case "hop limit":
				f.Break(cloudfake.Fault{On: "PUT ", What: "drop"})
			case "clock":
				n.Advance(time.Since(n.Now()) + 10*time.Minute)
				f.Now = time.Now
			case "html":
				f.Break(cloudfake.Fault{
					On:   "eks ",
					What: "body",
					Body: "<html>proxy</html>",
				})
			case "huge":
				f.Break(cloudfake.Fault{On: "eks ", What: "huge"})
			case "no name":
				ref.Name = ""
			case "odd region":
				ref.Region = "evil.example/"
			case "no DNS name":
				f.Machine.Name = ""
			default:
				_, of, only := strings.Cut(name, "EC2 ")
				if !only {
					of = name
				}
				faults := cloudfake.Refused(of)
				must.That(t, len(faults) == 2, "%v", "no such fault: "+of)
				if only {
					faults = faults[1:]
				}
				f.Break(faults...)
			}

			start := time.Now()
			c, err := instance.AskCluster(t.Context(), n.View(), i, ref)
			if err == nil {
				t.Errorf("%s: no error: %+v", name, c)
				return
			}
			took := time.Since(start)
			check.That(t, took <= 90*time.Second, "%s took %s", name, took)
			all.WriteString(name + ": " + said(t, err) + "\n")
		})
	}

	golden(t, "fails/eks", all.String())
}

// TestAskClusterThrottledOnce is let in at the fourth time.
func TestAskClusterThrottledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := in(t, ec2())
		for _, x := range cloudfake.Refused("throttled") {
			x.Times = 3
			f.Break(x)
		}

		_, err := instance.AskCluster(t.Context(), n.View(), asInstance(), instance.ClusterRef{Name: "gpus"})
		check.That(t, err == nil, "%v", err)
	})
}

// TestToken makes a token that EKS takes, for this cluster and this time alone.
func TestToken(t *testing.T) {
	f, n := in(t, ec2())
	now := n.Now()
	f.Now = func() time.Time { return now }
	token, expires, err := instance.Token(t.Context(), n.View(), "gpus", "")
	must.OK(t, err)
	check.OK(t, f.CheckToken(token))
	check.That(t, expires.Sub(now) >= 13*time.Minute && expires.Sub(now) <= 15*time.Minute, "it says that it ends at %s", expires)
	f.Cluster.Name = "others"
	check.That(t, f.CheckToken(token) != nil, "another cluster takes it")
	f.Cluster.Name, now = "gpus", now.Add(16*time.Minute)
	check.That(t, f.CheckToken(token) != nil, "it never ends")
	golden(t, "ask/token", strings.Join(f.Requests(), "\n")+"\n")
}

// TestTokenClock makes none with a wrong clock.
func TestTokenClock(t *testing.T) {
	f, n := in(t, ec2())
	now := n.Now()
	f.Now = func() time.Time { return now.Add(-10 * time.Minute) }
	_, _, err := instance.Token(t.Context(), n.View(), "gpus", "us-east-1")
	golden(t, "fails/clock", said(t, err))
	_, _, err = instance.Token(t.Context(), n.View(), "-x", "")
	check.That(t, err != nil, "a token for no cluster")
}

// TestJSON keeps the CA and nothing secret out of Facts.
func TestJSON(t *testing.T) {
	data, err := json.Marshal(instance.Cluster{Name: "gpus", CA: []byte(ca)})
	check.That(t, err == nil && !strings.Contains(string(data), "CERTIFICATE"), "%s %v", data, err)
}
