// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// simNow is a simulated machine's clock.
func simNow() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// TestForms logs in by every form of kubeconfig that there is on nodes, and asks who we are.
func TestForms(t *testing.T) {
	ca := newAuthority(t, "kubernetes")
	cert, key := ca.client(t, "system:node:gpu-1", simNow().Add(-time.Hour), simNow().Add(time.Hour))
	both := "-- pki/both.pem --\n" + string(cert) + string(key)
	config := func(user string) string { return "-- etc/k --\n" + withUser(user) }
	for name, tt := range map[string]struct{ files, want string }{
		"token":            {config(`{token: ` + planted + `}`), "known"},
		"token file":       {config(`{tokenFile: t}`) + "-- etc/t --\n" + planted + "\n", "known"},
		"token and file":   {config(`{token: old, tokenFile: /t}`) + "-- t --\n" + planted + "\n", "known"},
		"no user":          {config(`{}`), "default"},
		"JSON":             {"-- etc/k --\n" + `{"current-context":"here","contexts":[{"name":"here","context":{"cluster":"c","user":""}}],` + "\t" + `"clusters":[{"name":"c","cluster":{"server":"` + server + `"}}]}`, "default"},
		"cert by file":     {config(`{client-certificate: ../pki/both.pem, client-key: /pki/both.pem}`) + both, "default"},
		"cert inline":      {config(`{client-certificate-data: ` + b64(cert) + `, client-key-data: ` + b64(key) + `}`), "default"},
		"cert inline, key": {config(`{client-certificate-data: `+b64(cert)+`, client-key: /pki/both.pem}`) + both, "default"},
		"link": {
			config(`{client-certificate: /pki/current, client-key: /pki/current}`) + both + "-- pki/current link=/pki/both.pem --\n", "default",
		},
		"CA inline": {strings.Replace(config(`{}`), `server:`, `certificate-authority-data: `+b64(ca.pem)+`, server:`, 1), "default"},
		"CA file":   {strings.Replace(config(`{}`), `server:`, `certificate-authority: ca.crt, server:`, 1) + "-- etc/ca.crt --\n" + string(ca.pem), "default"},
	} {
		t.Run(name, func(t *testing.T) {
			sim := kubesim.New(kubesim.User{Name: "default"})
			sim.Token(planted, kubesim.User{Name: "known"})
			n := machine(t, tt.files)
			n.Serve("api.example:6443", sim)
			c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
			must.OK(t, err)
			is, err := c.Whoami(t.Context())
			check.That(t, err == nil && is.Username == tt.want, "we are %q (%v), want %q", is.Username, err, tt.want)
			if strings.HasPrefix(name, "cert") || name == "link" {
				got, err := c.login.certificate()
				check.That(t, err == nil && got.Leaf.Subject.CommonName == "system:node:gpu-1", "shown is %v, %v", got, err)
			}
		})
	}
}

// TestUnusable wants each kubeconfig that cannot be used named with what is wrong in it, and
// nothing of its secrets.
func TestUnusable(t *testing.T) {
	good := withUser(`{token: ` + planted + `}`)
	with := func(old, new string) string {
		return "-- etc/k --\n" + strings.Replace(good, old, new, 1)
	}
	user := func(u string) string { return "-- etc/k --\n" + withUser(u) }
	for name, tt := range map[string]struct {
		files string
		why   Why
		words string
	}{
		"missing":             {"-- etc/x --\n", Missing, "cannot use kubeconfig /etc/k: not found"},
		"folder":              {"-- etc/k/ --\n", Broken, "a folder"},
		"FIFO":                {"-- etc/k type=fifo --\n", Broken, "FIFO"},
		"huge":                {"-- etc/k --\n# " + strings.Repeat("x", maxSmall), Broken, "larger than 1 MiB"},
		"empty":               {"-- etc/k --\n", Broken, "no current-context"},
		"no YAML":             {"-- etc/k --\na: [" + planted + "\nb: {", Broken, "not YAML\n\nkubectl config view --kubeconfig=/etc/k"},
		"a list":              {"-- etc/k --\n- " + planted + "\n", Broken, "form of a kubeconfig\n\nkubectl config view --kubeconfig=/etc/k"},
		"wrong type":          {user(`{token: [` + planted + `]}`), Broken, "form of a kubeconfig\n\nkubectl config view --kubeconfig=/etc/k"},
		"no context":          {with("current-context: here,", ""), Broken, "no current-context"},
		"wrong context":       {with("current-context: here", "current-context: there"), Broken, `current-context "there" is not among its contexts: there are here`},
		"wrong cluster":       {with("cluster: c,", "cluster: d,"), Broken, `names cluster "d"`},
		"wrong user":          {with("user: u}", "user: w}"), Broken, `names user "w"`},
		"no server":           {with(server, ""), Broken, "names no server"},
		"server is not a URL": {with(server, "https://u:"+planted+"@%zz"), Broken, "not a URL such as"},
		"server with user":    {with(server, "https://u:"+planted+"@h"), Broken, "user or a password in the URL"},
		"plain http":          {with("https:", "http:"), Broken, "plain http"},
		"other scheme":        {with("https:", "unix:"), Broken, "not a URL such as"},
		"blind":               {with("server:", "insecure-skip-tls-verify: true, server:"), Broken, "insecure-skip-tls-verify"},
		"server name":         {with("server:", "tls-server-name: x, server:"), Broken, "tls-server-name"},
		"CA no base64":        {with("server:", "certificate-authority-data: '"+planted+"%', server:"), Broken, "not base64"},
		"CA no PEM":           {with("server:", "certificate-authority-data: "+b64([]byte(planted))+", server:"), Broken, "not a certificate in PEM"},
		"CA missing":          {with("server:", "certificate-authority: ca.crt, server:"), Broken, "/etc/ca.crt"},
		"CA empty":            {with("server:", "certificate-authority: ca.crt, server:") + "-- etc/ca.crt --\n", Broken, "/etc/ca.crt is empty"},
		"password":            {user(`{username: u, password: ` + planted + `}`), Broken, "password"},
		"auth provider":       {user(`{auth-provider: {name: gcp, config: {x: ` + planted + `}}}`), Broken, "auth-provider"},
		"impersonation":       {user(`{token: ` + planted + `, as: root}`), Broken, "impersonates"},
		"certificate alone":   {user(`{client-certificate: /x}`), Broken, "only one of"},
		"key alone":           {user(`{client-key-data: ` + b64([]byte(planted)) + `}`), Broken, "only one of"},
		"cert no base64":      {user(`{client-certificate-data: '%` + planted + `'}`), Broken, "not base64"},
		"exec, no command":    {user(`{exec: {apiVersion: client.authentication.k8s.io/v1}}`), Broken, "no command"},
		"exec, old":           {user(`{exec: {command: x, apiVersion: client.authentication.k8s.io/v1alpha1}}`), Broken, "v1alpha1"},
		"exec, asks":          {user(`{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}}`), Broken, "interactive terminal"},
		"exec, env": {
			user(`{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, env: [{name: 'a=b', value: ` + planted + `}]}}`), Broken, "env entry",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := new(Clients).Ask(machine(t, tt.files), From{Kubeconfig: "/etc/k"})
			wants(t, err, tt.why, tt.words, "kubeconfig /etc/k")
		})
	}

	_, err := new(Clients).Ask(machine(t, ""), From{})
	wants(t, err, Broken, "none is named")
}

// TestCredentials wants what cannot work said before the network is asked.
func TestCredentials(t *testing.T) {
	ca := newAuthority(t, "kubernetes")
	pair := func(name string, from, to time.Duration) string {
		cert, key := ca.client(t, name, simNow().Add(from), simNow().Add(to))
		return string(cert) + string(key)
	}

	other, _ := ca.client(t, "x", simNow(), simNow().Add(time.Hour))
	_, key := ca.client(t, "x", simNow(), simNow().Add(time.Hour))
	const day = 24 * time.Hour
	byFile := "-- etc/k --\n" + withUser(`{client-certificate: c.pem, client-key: c.pem}`)
	for name, tt := range map[string]struct {
		files string
		why   Why
		waits bool
		words []string
	}{
		"run out": {
			byFile + "-- etc/c.pem --\n" + pair("system:node:gpu-1", -20*day, -10*day), Expired, false,
			[]string{"/etc/c.pem has run out on 2025-12-23 03:04 UTC, 10 days ago", "clock says 2026-01-02", "--client-name system:node:gpu-1", "kubeconfig /etc/k"},
		},
		"run out, no node": {
			byFile + "-- etc/c.pem --\n" + pair("admin", -20*day, -3*time.Hour), Expired, false, []string{"3 hours ago"},
		},
		"not yet":        {byFile + "-- etc/c.pem --\n" + pair("x", time.Hour, day), Expired, true, []string{"only from 2026-01-02 04:04 UTC on", "timedatectl"}},
		"missing":        {byFile, Expired, true, []string{"/etc/c.pem", "journalctl -u kubelet"}},
		"empty":          {byFile + "-- etc/c.pem --\n", Broken, false, []string{"/etc/c.pem", "no certificate in PEM"}},
		"another's key":  {byFile + "-- etc/c.pem --\n" + string(other) + string(key), Broken, false, []string{"do not belong together"}},
		"no token file":  {"-- etc/k --\n" + withUser(`{tokenFile: /t}`), Expired, true, []string{"/t"}},
		"empty token":    {"-- etc/k --\n" + withUser(`{tokenFile: /t}`) + "-- t --\n\n", Expired, false, []string{"/t is empty"}},
		"token of lines": {"-- etc/k --\n" + withUser(`{tokenFile: /t}`) + "-- t --\n" + planted + "\n" + planted + "\n", Broken, false, []string{"characters that no token has"}},
		"huge token":     {"-- etc/k --\n" + withUser(`{tokenFile: /t}`) + "-- t --\n" + strings.Repeat("s3cret", maxSmall), Broken, false, []string{"larger than 1 MiB"}},
	} {
		t.Run(name, func(t *testing.T) {
			sim := kubesim.New(kubesim.Admin())
			n := machine(t, tt.files)
			n.Serve("api.example:6443", sim)
			c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
			must.OK(t, err)
			_, err = c.Node(t.Context(), "gpu-1")
			e := wants(t, err, tt.why, append(tt.words, "cannot get the Node gpu-1")...)
			check.That(t, e.Passing == tt.waits, "waits: %v", e.Passing)
			got := sim.Requests()
			check.That(t, got == nil, "the network was asked: %v", got)
		})
	}
}

// TestRotation wants files read again for each request.
func TestRotation(t *testing.T) {
	sim := kubesim.New(kubesim.User{})
	sim.Token("old-token", kubesim.User{Name: "old"})
	n := machine(t, "-- etc/k --\n"+withUser(`{tokenFile: /t}`)+"-- t --\nold-token\n")
	n.Serve("api.example:6443", sim)
	c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	if is, err := c.Whoami(t.Context()); is.Username != "old" {
		t.Errorf("%q, %v", is.Username, err)
	}
	sim.Revoke("old-token")
	_, err = c.Whoami(t.Context())
	wants(t, err, Unauthorized, "(401)", "the token in /t")
	sim.Token(planted, kubesim.User{Name: "new"})
	must.OK(t, n.WriteFile("/t", []byte(planted+"\n"), host.Attr{Mode: 0o600}))
	is, err := c.Whoami(t.Context())
	check.That(t, is.Username == "new", "%q, %v", is.Username, err)
}

// TestUnauthorized wants a wrong clock named, and what was shown.
func TestUnauthorized(t *testing.T) {
	ca := newAuthority(t, "kubernetes")
	cert, key := ca.client(t, "system:node:gpu-1", simNow().Add(-time.Hour), simNow().Add(time.Hour))
	n := machine(t, "-- etc/k --\n"+withUser(`{client-certificate: c.pem, client-key: c.pem}`)+"-- etc/c.pem --\n"+string(cert)+string(key))
	n.Serve("api.example:6443", kubesim.New(kubesim.User{}))
	c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
	must.OK(t, err)
	c.now = func() time.Time { return n.Now().Add(-7 * time.Minute) }
	_, err = c.Node(t.Context(), "gpu-1")
	e := wants(t, err, Unauthorized, "it got the client certificate /etc/c.pem", "of system:node:gpu-1", "7 minutes behind", "timedatectl")
	check.That(t, !e.Passing, "waiting does not help")
}

// TestUnauthorizedShowsTheCertificate: the command that shows the certificate's issuer works as
// typed, whether the certificate is a file or in the kubeconfig.
func TestUnauthorizedShowsTheCertificate(t *testing.T) {
	ca := newAuthority(t, "kubernetes")
	cert, key := ca.client(t, "system:node:gpu-1", simNow().Add(-time.Hour), simNow().Add(time.Hour))
	inline := `{client-certificate-data: ` + b64(cert) + `, client-key-data: ` + b64(key) + `}`
	for user, want := range map[string]string{
		`{client-certificate: "c c.pem", client-key: c c.pem}`: "openssl x509 -noout -issuer -enddate -in '/etc/c c.pem'",
		inline: "kubectl config view --raw --minify --kubeconfig=/etc/k -o jsonpath='{.users[0].user.client-certificate-data}' | base64 -d | openssl x509 -noout -issuer -enddate",
	} {
		n := machine(t, "-- etc/k --\n"+withUser(user)+`-- "etc/c c.pem" --`+"\n"+string(cert)+string(key))
		n.Serve("api.example:6443", kubesim.New(kubesim.User{}))
		c, err := new(Clients).Ask(n, From{Kubeconfig: "/etc/k"})
		must.OK(t, err)
		_, err = c.Node(t.Context(), "gpu-1")
		wants(t, err, Unauthorized, want+"   # is the issuer this cluster's CA?")
	}
}

func TestPod(t *testing.T) {
	ca := newAuthority(t, "kubernetes")
	sim := kubesim.New(kubesim.User{})
	sim.Token(planted, kubesim.User{Name: "system:serviceaccount:gpuadm:gpuadm"})
	files := fmt.Sprintf("-- proc/self/environ nonl --\nA=b\x00KUBERNETES_SERVICE_HOST=fd00::1\x00KUBERNETES_SERVICE_PORT=443\x00\n-- %[1]s/ca.crt --\n%[2]s-- %[1]s/token --\n%[3]s",
		podFolder[1:], ca.pem, planted)
	n := machine(t, files)
	n.Serve("[fd00::1]:443", sim)
	c, err := new(Clients).Do(n, From{Pod: true})
	must.OK(t, err)
	if is, err := c.Whoami(t.Context()); err != nil || is.Username != "system:serviceaccount:gpuadm:gpuadm" {
		t.Errorf("%q, %v", is.Username, err)
	}
	_, err = new(Clients).Do(machine(t, "-- proc/self/environ --\nA=b\n"), From{Pod: true})
	wants(t, err, Broken, "this is not a pod")
	_, err = new(Clients).Do(machine(t, strings.Replace(files, "/ca.crt", "/x", 1)), From{Pod: true})
	wants(t, err, Broken, "ca.crt", "automountServiceAccountToken")
}

func TestWithToken(t *testing.T) {
	sim := kubesim.New(kubesim.User{})
	sim.Token(planted, kubesim.User{Name: "system:bootstrap:abcdef"})
	n := machine(t, "")
	n.Serve("api.example:6443", sim)
	c, err := WithToken(n, server, nil, planted, host.Via{})
	must.OK(t, err)
	if is, err := c.Whoami(t.Context()); is.Username != "system:bootstrap:abcdef" {
		t.Errorf("%q, %v", is.Username, err)
	}
	c, err = WithToken(n, server, nil, "wrong-s3cret", host.Via{})
	must.OK(t, err)
	_, err = c.Whoami(t.Context())
	wants(t, err, Unauthorized, "the token that was given", "kubectl create token")
	_, err = WithToken(n, "api.example:6443", nil, planted, host.Via{})
	wants(t, err, Broken, "not a URL such as")
}

// FuzzParse wants a hostile kubeconfig to neither hang nor panic, and no secret of it in an error.
func FuzzParse(f *testing.F) {
	f.Add(withUser(`{token: a}`))
	f.Add(withUser(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./x, args: [a], env: [{name: A, value: b}]}}`))
	f.Add("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]")
	f.Add(strings.Repeat("[", 20000))
	f.Add("users:\n- name: u\n  user:\n    token: !!binary s3cret\n")
	f.Add(withUser(`{client-certificate-data: "", client-key-data: "x"}`))
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "s3cret", planted)
		var s settings
		var err error
		alloc.Most(t, 2000, len(text), func() { s, err = parse([]byte(text), "/etc") })
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
			return
		}

		check.That(t, s.login != nil, "no error and no login")
		if s.caFile != "" && !strings.HasPrefix(s.caFile, "/") {
			t.Errorf("certificate authority at %q", s.caFile)
		}
	})
}

// TestKubeconfigNamesFilesOfOthers: where an operator names the kubeconfig, another user may own
// none of the files that it names, and not the program that it has run.
func TestKubeconfigNamesFilesOfOthers(t *testing.T) {
	for file, text := range map[string]string{
		"/etc/ca":   strings.Replace(withUser(`{token: x}`), "{server:", "{certificate-authority: ca, server:", 1),
		"/etc/t":    withUser(`{tokenFile: t}`),
		"/etc/cert": withUser(`{client-certificate: cert, client-key-data: eA==}`),
		"/etc/key":  withUser(`{client-certificate-data: eA==, client-key: key}`),
		"/etc/p":    withUser(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./p}}`),
	} {
		n := machine(t, "-- etc/k --\n"+text+"-- "+file[1:]+" --\nx\n")
		for _, judged := range []bool{false, true} {
			for uid, refused := range map[int]bool{0: false, 7: judged} {
				must.OK(t, n.SetAttr(file, host.Attr{Mode: 0o755, UID: uid}))
				_, err := settingsFrom(n, From{Kubeconfig: "/etc/k", Judged: judged})
				got := err != nil && strings.Contains(err.Error(), "user 7 owns "+file)
				check.That(t, got == refused, "%s of user %d, judged %v: %v", file, uid, judged, err)
			}
		}
	}
}
