// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Of packages of which the same is to be said it is said once, and a place once for all its versions.
func TestToldOnce(t *testing.T) {
	const a, b = "https://a.example/cuda", "https://b.example/main"
	offers := map[string][]offer{
		"nvidia-driver": {{version: "590.1-1", from: []string{a}}, {version: "580.2-1", from: []string{a}}, {version: "535.1-1", from: []string{b}}},
		"nvidia-smi":    {{version: "590.1-1", from: []string{a}}, {version: "580.2-1", from: []string{a}}, {version: "535.1-1", from: []string{b}}},
		"nvidia-old":    nil,
	}
	names := []string{"nvidia-driver", "nvidia-old", "nvidia-smi"}
	got := toldAll(names, func(name string) ([]offer, State) { return offers[name], State{Version: "580.2-1"} })
	want := []string{
		"nvidia-driver, nvidia-smi: 590.1-1, 580.2-1 from " + a + "; 535.1-1 from " + b + "; installed is 580.2-1",
		"nvidia-old: no source has it; installed is 580.2-1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	var many []offer
	for _, v := range []string{"8", "7", "6", "5", "4", "3", "2", "1"} {
		many = append(many, offer{version: v, from: []string{a}})
	}
	if got := told("x", many, State{}); got != "x: 8, 7, 6, 5, 4, 3 from "+a+", and 2 more" {
		t.Error(got)
	}
}

// Who holds a lock is said on one line that can be read.
func TestCommandOf(t *testing.T) {
	n, err := simhost.New([]byte("-- proc/7/cmdline base64 --\nc2gALWMAZWNobyBhCgllY2hvIGIA\n-- proc/8/cmdline --\n" + strings.Repeat("x", 300) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[string]string{"7": " (sh -c echo a echo b)", "8": " (" + strings.Repeat("x", 120) + "…)", "9": ""} {
		if got := commandOf(n, pid); got != want {
			t.Errorf("%s: %q, want %q", pid, got, want)
		}
	}
}

// Whatever apt or dnf say, there is something to do next.
func TestExplainedWithAMend(t *testing.T) {
	n, err := simhost.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, explained := range map[string]error{
		"apt":          explain(n, "", &host.CommandError{Stderr: "E: a message of no known kind"}),
		"apt, unmet":   explain(n, "The following packages have unmet dependencies:\n a : Depends: b but it is not installable\n", &host.CommandError{Stderr: "E: Unable to correct problems"}),
		"dnf":          explainDnf(n, "", &host.CommandError{Stderr: "Error: a message of no known kind"}),
		"dnf, problem": explainDnf(n, "", &host.CommandError{Stderr: "Error: \n Problem: conflicting requests\n  - nothing provides x\n"}),
	} {
		trouble := (*converge.Trouble)(nil)
		if !errors.As(explained, &trouble) || len(trouble.Try) == 0 || !strings.HasPrefix(trouble.What, "cannot ") {
			t.Errorf("%s: %v", name, explained)
		}
	}
}

// A proxy that our own files name is a next step where nothing else is known; and what is said already is not said again.
func TestExplainedProxy(t *testing.T) {
	const said = "E: Failed to fetch http://vendor.invalid/x/InRelease  Could not connect to 127.0.0.1:1 (127.0.0.1). - connect (111: Connection refused)\nE: Some index files failed to download."
	for text, proxy := range map[string]bool{
		"": false,
		"-- etc/apt/apt.conf.d/90gpuadm --\nAcquire::http::Proxy \"http://127.0.0.1:1\";\n":     true,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n[gpuadm-driver]\nproxy=http://127.0.0.1:1\n": true,
		"-- etc/yum.repos.d/theirs.repo --\n[theirs]\nproxy=http://127.0.0.1:1\n":               false,
	} {
		n, err := simhost.New([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := wordsOf(unread(n, explain(n, said, &host.CommandError{Stderr: said}), "http://vendor.invalid/x", "/etc/x.sources"))
		if strings.Contains(got, "127.0.0.1:1: see that the proxy runs") != proxy {
			t.Errorf("%s\n%s", text, got)
		}
		contains(t, got, "cannot read repository http://vendor.invalid/x (/etc/x.sources): Failed to fetch http://vendor.invalid/x/InRelease  Could not connect", "\nSome index files failed to download", "see that the address is right")
		if strings.Count(got, "Could not connect to") > 2 { // as the cause, and as what apt said
			t.Errorf("it is said over and over: %s", got)
		}
	}
}

// What dpkg has left half done is named by its database, with what its script and the compiler said.
func TestExplainedScript(t *testing.T) {
	const status = "-- var/lib/dpkg/status --\nPackage: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\nPackage: nvidia-dkms\nStatus: install ok half-configured\nArchitecture: amd64\nVersion: 580.95.05-1\n\n"
	const said = "told to fail\ndpkg: error processing package nvidia-dkms (--configure):\n installed nvidia-dkms package post-installation script subprocess returned error exit status 10\nErrors were encountered while processing:\n nvidia-dkms\nE: Sub-process /usr/bin/dpkg returned an error code (1)"
	n, err := simhost.New([]byte(status + "-- var/lib/dkms/nvidia/580.95.05/build/make.log --\nfirst line\n/x/nv.c:3:9: error: no such thing\nmake: *** [all] Error 2\n-- var/lib/dpkg/updates/ --\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := wordsOf(explain(n, "Setting up other (1) ...\nSetting up nvidia-dkms (580.95.05-1) ...\nLoading new nvidia DKMS files\n", &host.CommandError{Stderr: said}))
	contains(t, got, "cannot install package nvidia-dkms: dpkg has left it half-configured\n", "/x/nv.c:3:9: error: no such thing", "Loading new nvidia DKMS files", "told to fail", "exit status 10", "try:", "term.log")
	if got := wordsOf(explain(n, "", &host.CommandError{Stderr: "E: Unable to fetch some archives"})); strings.Contains(got, "nvidia-dkms") {
		t.Errorf("dpkg has not run: %s", got)
	}
}
