// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
)

// times is what the API server's clock says, and this machine's. By a certificate of the server's
// that does not hold here and now, the distance is only known to be no smaller.
type times struct {
	server, here time.Time
	least        bool
}

// clock asks the API server for its time. ok is false where it does not answer.
func (m *Machine) clock() (t times, ok bool) {
	k := m.Basics().Kubelet
	if !k.Joined || k.Kubeconfig == "" {
		return t, false
	}
	t, ok = m.times.read(m, "the clock, against the API server's", func() (t times, err error) {
		ctx, end := m.soon()
		defer end()
		t.server, t.here, err = kube.Clock(ctx, m.View, k.Kubeconfig)
		var bad x509.CertificateInvalidError
		if errors.As(err, &bad) && bad.Reason == x509.Expired && bad.Cert != nil {
			t = times{bad.Cert.NotAfter, m.View.Now(), true}
			if t.here.Before(bad.Cert.NotBefore) {
				t.server = bad.Cert.NotBefore
			}
			return t, nil
		}

		if m.runs() {
			return t, nil // what keeps the server from answering is noted of the Node
		}
		return t, err
	})
	return t, ok && !t.server.IsZero()
}

// skew is how far the clock is ahead of the API server's; 0 where that is not known, or less than
// what a certificate is dated back.
// Sources: https://github.com/kubernetes/kubernetes/pull/119115 (5 minutes, for clocks that
// differ); https://github.com/vmware/pinniped/pull/849 (as kube-controller-manager does for
// kubelets).
func (m *Machine) skew() time.Duration {
	t, ok := m.clock()
	if by := t.here.Sub(t.server).Round(time.Second); ok && by.Abs() > 5*time.Minute {
		return by
	}
	return 0
}

// skewed says what the API server's clock shows of this one's, and what that does to kubelet's
// certificate.
func (m *Machine) skewed(by time.Duration, way string) []Finding {
	t, _ := m.clock()
	kubelet := m.Basics().Kubelet
	what := fmt.Sprintf("the clock is %s %s the API server's", inWords(by), way)
	if t.least {
		what = fmt.Sprintf("by the clock the API server's certificate does not hold: the clock is at least %s %s the server's, unless its certificate was not renewed", inWords(by), way)
	} else if holdsAt(kubelet, t.server) && isOutside(kubelet, t.here) {
		what += ", and by it kubelet's certificate, which is good, is not valid"
	}

	return []Finding{{What: what}}
}

// inWords is a duration as a person says it: in days from two days on.
func inWords(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

// holdsAt reports whether kubelet has a certificate that is valid at a time.
func holdsAt(kubelet facts.Kubelet, at time.Time) bool {
	return !kubelet.Expired.IsZero() && kubelet.Begins.Before(at) && kubelet.Expired.After(at)
}

// isOutside reports whether kubelet's certificate is not valid yet at a time, or no longer.
func isOutside(kubelet facts.Kubelet, at time.Time) bool {
	return kubelet.Begins.After(at) || kubelet.Expired.Before(at)
}

func clockAhead(m *Machine) []Finding {
	if by := m.skew(); by > 0 {
		return m.skewed(by, "ahead of")
	}
	return nil
}

// clockBehind asks the API server, or else compares the clock with what has been there before: a
// certificate's beginning, and files that programs of this machine write.
func clockBehind(m *Machine) []Finding {
	now := m.View.Now()
	if by := m.skew(); by < 0 {
		return m.skewed(-by, "behind")
	}
	if k := m.Basics().Kubelet; k.Begins.After(now.Add(time.Minute)) {
		if _, known := m.clock(); !known {
			says, made := now.UTC().Format(time.DateTime), k.Begins.Format(time.DateTime)
			return []Finding{{
				What: fmt.Sprintf("the clock says %s, and kubelet's certificate was made %s", says, made),
			}}
		}
	}

	for _, name := range writtenFiles() {
		if i, err := m.View.Stat(name); err == nil && i.Ctime.After(now.Add(24*time.Hour)) {
			day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
			return []Finding{{
				What: fmt.Sprintf("the clock says %s, and %s was changed %s", day(now), name, day(i.Ctime)),
			}}
		}
	}

	return nil
}

// writtenFiles returns files that programs of this machine write: the packager, the time daemons and
// kubelet.
func writtenFiles() []string {
	files := append([]string{facts.DpkgStatus}, facts.RpmFiles()...)
	return append(files,
		"/var/lib/systemd/timesync/clock",
		// The driftfile of chrony.conf as RHEL ships it, and as Debian and Ubuntu do.
		"/var/lib/chrony/drift",
		"/var/lib/chrony/chrony.drift",
		"/var/lib/kubelet/pki/kubelet-client-current.pem",
	)
}

func clockNotSynchronised(m *Machine) []Finding {
	u, ok := m.Unit("systemd-journald.service")
	if !ok || u.Uptime < 15*time.Minute {
		return nil
	}
	out, err := m.View.Ask(m.ctx, "timedatectl", "show", "--property=NTP", "--property=NTPSynchronized")
	if host.NotExist(err) {
		return nil // this machine has no timedatectl, so the check does not apply
	}
	if err != nil {
		m.cannotRead("clock synchronisation", err)
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if !slices.Contains(lines, "NTP=yes") || !slices.Contains(lines, "NTPSynchronized=no") {
		return nil
	}
	return []Finding{{What: "a time daemon is switched on, and the kernel's clock was not synchronised since the boot"}}
}
