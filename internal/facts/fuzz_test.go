// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
)

// FuzzParsers gives the same text to every parser of this package: none may panic or hang, and what
// they return must keep what each promises.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{
		"", "A=\"b\\\"c\" 'd'\\\n e\n#x\n;y\nB='", "[Service]\nExecStart=\nExecStart=-@/usr/bin/x \"a b\" $OPTS ${X}y $$ \\x41 %% ; z\\\n",
		"Package: containerd\nStatus: install ok installed\nVersion: 1:1.7.24~ds1-6+b4\n\n", "imports = [\"/a/*.toml\", \"../b\"]\n[grpc]\naddress = \"x\"\n",
		"registerWithTaints: &a [*a, {key: b, effect: c}]\n", "--node-labels=a=b --register-with-taints c=d:NoSchedule\nKUBELET_EXTRA_ARGS=x", tokenConfig, "node-label+: [a=b]\nnode-taint: x:y\n", "0-3,8",
		"cgroupDriver: systemd\nx: 'y # z\n", "{\"cgroupDriver\": \"systemd\"}", "6.8.0-1021-aws", "v2.0.0~rc.1", "\\U0010ffff\\777\\x00\\",
	} {
		f.Add(s, s)
	}

	f.Fuzz(func(t *testing.T, a, b string) {
		for _, kv := range Assignments(a) {
			if kv[0] == "" || strings.ContainsAny(kv[0], "=\n") {
				t.Errorf("not a name: %q", kv[0])
			}
		}

		s := &service{}
		s.add(a)
		s.add(b)
		for _, line := range s.start {
			if line == "" {
				t.Error("an empty command line")
			}
		}

		for _, w := range Words(a) {
			if alone().MatchString("$"+w) && replaceBraced("${"+w+"}", map[string]string{w: b}) != b {
				t.Errorf("${%s} is not replaced", w)
			}
		}

		argv := commandLine(a, func() map[string]string {
			return map[string]string{"OPTS": b}
		})
		Options(argv, "config", "c")
		(&gathering{v: files{"/var/lib/dpkg/status": a}}).dpkgEntry(b)
		if v := upstream(a); v != "" && upstream(v) != v {
			t.Errorf("the version of version %q is %q", v, upstream(v))
		}
		versionIn(a)
		parseSettings([]byte(a)).text(b)
		new(Kubelet).merge(File{Data: []byte(a)})
		if newer(a, b) != 0 && (newer(a, b) > 0) == (newer(b, a) > 0) {
			t.Errorf("%q and %q are each newer or older than the other", a, b)
		}
		model(a, b)
		v := files{
			"/etc/os-release": a, "/etc/containerd/config.toml": a, "/etc/containerd/x.toml": b, "/usr/bin/containerd": "x",
			"/var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n", "/var/lib/dpkg/status": b,
			"/usr/lib/systemd/system/kubelet.service": a, "/etc/crio/crio.conf.d/a": a, "/etc/docker/daemon.json": b,
			"/etc/systemd/system/k3s.service": b, "/etc/rancher/k3s/config.yaml": a,
		}
		var facts Facts
		var err error
		alloc.Beside(t, 16<<20, 4000, len(a)+len(b), func() {
			facts, err = Gather(t.Context(), v, Needs{})
		})
		if err != nil && !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("an error that does not say what cannot be done: %v", err)
		}
		_ = facts.String()
		fuzzKubelet(t, a, b)
	})
}

// fuzzKubelet gives the texts to a kubelet's files: wherever they lie, there must be a place for
// changes or a reason why not.
func fuzzKubelet(t *testing.T, a, b string) {
	firstCertificate([]byte(a))
	if n := countList(a); n < 0 {
		t.Errorf("%q are %d CPUs", a, n)
	}
	memory(a)
	for _, v := range []files{
		{
			unitFile:              "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=/usr/bin/kubelet --config /c --config-dir=/d --kubeconfig=/k $KUBELET_EXTRA_ARGS\n",
			unitDir + "10-x.conf": b, "/etc/default/kubelet": a, "/c": b, "/d/x.conf": a, "/k": a, "/etc/hostname": b,
		},
		{unitFile: a, unitDir + "10-x.conf": b},
		{"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server\n", "/etc/rancher/k3s/config.yaml": a, "/etc/rancher/k3s/config.yaml.d/1.yaml": b},
	} {
		f, err := Gather(t.Context(), v, Needs{})
		if err != nil && !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("an error that does not say what cannot be done: %v", err)
		}
		for _, p := range []Place{f.Kubelet.LabelsAt, f.Kubelet.TaintsAt} {
			if f.Kubelet.Unit != "" && ((p.How == "") != (p.Why != "") || (p.How == "") != (p.File == "")) {
				t.Errorf("neither a place nor a reason: %+v", p)
			}
		}

		for _, taint := range f.Kubelet.Taints {
			if taint.Key == "" {
				t.Error("a taint without a key")
			}
		}
	}
}
