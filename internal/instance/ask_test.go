// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with what it was when a developer reviewed it last.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	check.None(t, cmp.Diff(string(want), got), "%s (-want +got, -update takes it over)", name)
}

const ca = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"

//go:embed testdata/user-data.txt
var userDataText string

// userData names the cluster, and holds a secret.
func userData() string {
	return fmt.Sprintf(userDataText, base64.StdEncoding.EncodeToString([]byte(ca)))
}

func ec2() cloudfake.Machine {
	return cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Image: "ami-0123456789abcdef0",
		Account: "123456789012", Name: "ip-10-0-1-2.ec2.internal", PrivateIP: "10.0.1.2", IPv6: "2600:1f18::2", MAC: "0a:ff:c0:00:00:01",
		Tags: map[string]string{"eks:cluster-name": "gpus", "Name": "gpu node 1"}, UserData: userData(), Role: "node",
	}
}

// in puts a machine into EC2.
func in(t *testing.T, m cloudfake.Machine) (*cloudfake.Fake, *simhost.Node) {
	t.Helper()
	f := &cloudfake.Fake{Machine: m, Cluster: cloudfake.Cluster{
		Name: "gpus", Server: "https://ABC.gr7.us-east-1.eks.amazonaws.com", CA: []byte(ca), Version: "1.34", ServiceCIDR: "172.20.0.0/16",
	}}
	n := made(t)
	n.Serve("169.254.169.254", f.EC2())
	for _, service := range []string{"eks", "ec2", "sts"} {
		n.Serve(service+"."+m.Region+".amazonaws.com", f.API())
	}
	return f, n
}

// TestAsk shows what was asked and what became of it.
func TestAsk(t *testing.T) {
	f, n := in(t, ec2())
	i := must.Get(instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"}))(t)
	said := must.Get(json.MarshalIndent(i, "", "  "))(t)
	golden(t, "ask/aws", strings.Join(f.Requests(), "\n")+"\n\n"+string(said)+"\n")
	check.That(t, !strings.Contains(string(said), "planted"), "a secret is kept: %s", said)
}

// said is an error in words, as a person would read it.
func said(t *testing.T, err error) string {
	t.Helper()
	var e *trouble.Error
	must.That(t, errors.As(err, &e), "%T %v is no *trouble.Error", err, err)
	check.That(t, e.What != "", "%+v", e)
	var b strings.Builder
	b.WriteString(e.What + "\n")
	for _, s := range e.Because {
		b.WriteString("  because " + s + "\n")
	}
	for _, s := range e.Try {
		b.WriteString("  try     " + s + "\n")
	}
	if e.Passing {
		b.WriteString("  waiting helps\n")
	}
	check.That(t, !strings.Contains(b.String()+err.Error(), "planted"), "a secret is printed: %s", b.String())
	return b.String()
}

// faults are how a metadata service fails.
func faults() map[string][]cloudfake.Fault {
	return map[string][]cloudfake.Fault{
		"drop":      {{What: "drop"}},
		"401":       {{On: "GET", What: "status", Status: 401}},
		"403":       {{What: "status", Status: 403}},
		"404":       {{What: "status", Status: 404}},
		"429":       {{What: "status", Status: 429}},
		"503":       {{What: "status", Status: 503}},
		"slow":      {{On: "GET", What: "slow"}},
		"truncated": {{On: "GET", What: "truncated"}},
		"huge":      {{On: "GET", What: "huge"}},
		"html": {{
			On:   "GET",
			What: "body",
			Body: "<html>\x1b[31mSign in to Wi-Fi</html>",
		}},
		"types": {{On: "GET", What: "body", Body: `{"instanceId": 7}`}},
		"control": {{
			On:   "GET",
			What: "body",
			Body: `{"instanceId": "i-\u001b[2J", "instanceType": "x", "region": "r"}`,
		}},
		"empty":     {{On: "GET", What: "body", Body: ""}},
		"bare":      {{What: "bare"}},
		"no answer": nil,
	}
}

// quick are the failures that are clear at once: it must not take longer than a second to say so.
func quick(name string) bool {
	return strings.Contains("401 403 404 huge html types control empty bare", name)
}

// TestAskFails shows every failure in its words, and that none takes longer than half a minute.
func TestAskFails(t *testing.T) {
	var all strings.Builder
	for _, name := range []string{"drop", "401", "403", "404", "429", "503", "slow", "truncated", "huge", "html", "types", "control", "empty", "bare", "no answer"} {
		synctest.Test(t, func(t *testing.T) {
			f, n := in(t, ec2())
			f.Break(faults()[name]...)
			if name == "no answer" {
				n = made(t)
			}
			start := time.Now()
			i, err := instance.Ask(t.Context(), n.View(), instance.Cloud{
				Name:       "aws",
				InstanceID: "i-0abcdef1234567890",
			})
			took := time.Since(start)
			if err == nil {
				t.Errorf("%s: no error: %+v", name, i)
				return
			}
			check.That(t, took <= 31*time.Second && (!quick(name) || took <= time.Second), "%s took %s", name, took)
			all.WriteString(name + ": " + said(t, err) + "\n")
		})
	}

	golden(t, "fails/aws", all.String())
}

// TestAskWaits lets the service come up late, as at boot, and fail for a while.
func TestAskWaits(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, n := in(t, ec2())
			n.Serve("169.254.169.254", nil)
			go func() {
				time.Sleep(20 * time.Second)
				n.Serve("169.254.169.254", f.EC2())
			}()
			_, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"})
			check.That(t, err == nil, "%v", err)
		})
	})
	t.Run("failing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, n := in(t, ec2())
			f.Break(cloudfake.Fault{
				What:   "status",
				Status: 503,
				Times:  3,
			}, cloudfake.Fault{What: "status", Status: 429, Times: 2})
			_, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"})
			check.That(t, err == nil, "%v", err)
		})
	})
}

// TestToken ends EC2's session tokens in the middle: another one is asked for.
func TestTokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := in(t, ec2())
		f.Break(cloudfake.Fault{
			On:    "GET /latest/meta-data/mac",
			What:  "forget",
			Times: 1,
		})
		i := must.Get(instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"}))(t)
		if n := strings.Count(strings.Join(f.Requests(), "\n"), "PUT "); n != 2 || i.UserCluster == nil {
			t.Errorf("%d tokens were asked for: %v", n, f.Requests())
		}
	})
}

// TestAskStops: Ask ends with its context.
func TestAskStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			time.Sleep(3 * time.Second)
			stop()
		}()
		start := time.Now()
		if _, err := instance.Ask(ctx, made(t).View(), instance.Cloud{Name: "aws"}); !errors.Is(err, context.Canceled) || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// TestAskLater says Later of an image.
func TestAskLater(t *testing.T) {
	var later host.Later
	_, err := instance.Ask(t.Context(), made(t, "image").View(), instance.Cloud{Name: "aws"})
	check.That(t, errors.As(err, &later), "an image was asked: %v", err)
}
