// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const crioFolder = "/etc/crio/crio.conf.d"

// What packages of CRI-O and its owners ship. Sources: contrib/bundle and packaging in
// https://github.com/cri-o/cri-o and https://github.com/cri-o/packaging (10-crio.conf, 1.28 and
// newer); config with one runtime as crio.conf.5.md has it.
const (
	crioPackaged = "[crio.image]\nsignature_policy = \"/etc/crio/policy.json\"\n\n[crio.runtime]\ndefault_runtime = \"crun\"\n\n" +
		"[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/libexec/crio/crun\"\nruntime_root = \"/run/crun\"\nmonitor_path = \"/usr/libexec/crio/conmon\"\n" +
		"allowed_annotations = [\n    \"io.containers.trace-syscall\",\n]\n\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/libexec/crio/runc\"\n" +
		"runtime_root = \"/run/runc\"\nmonitor_path = \"/usr/libexec/crio/conmon\"\n"
	crioKata     = "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\nruntime_path = \"/opt/kata/shim\"\nruntime_type = \"vm\"\n"
	crioOperator = "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\nruntime_type = \"oci\"\n"
)

func crioFiles(pairs ...string) (files []facts.File) {
	for i := 0; i < len(pairs); i += 2 {
		files = append(files, facts.File{Path: pairs[i], Data: []byte(pairs[i+1])})
	}
	return files
}

// The rules by which CRI-O reads its files, each as its source has it: see config.
func TestReadCRIO(t *testing.T) {
	runc := "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n"
	crunDefault := "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/bin/crun\"\n"
	for name, c := range map[string]struct {
		version string
		files   []facts.File
		want    string
	}{
		"nothing, 1.30":    {"1.30.4", nil, "runc: runc"},
		"nothing, 1.31":    {"1.31.0", nil, "crun: crun"},
		"nothing, unknown": {"", nil, "crun: crun"},
		"runc goes where another default is named up to 1.25": {"1.25.9", crioFiles("/a", crunDefault), "crun: crun"},
		"even one of the same file":                           {"1.23.0", crioFiles("/a", crunDefault+runc), "crun: crun"},
		"unless a later file has it":                          {"1.24.1", crioFiles("/a", crunDefault, "/b", runc), "crun: crun runc"},
		"and stays from 1.26 on":                              {"1.26.0", crioFiles("/a", crunDefault), "crun: crun runc"},
		"the last default counts":                             {"1.33.1", crioFiles("/a", crioPackaged, "/b", crioKata), "kata: crun kata runc"},
		"an empty default is CRI-O's own":                     {"1.33.1", crioFiles("/a", "[crio.runtime]\ndefault_runtime = \"\"\n"), "crun: crun"},
	} {
		got, err := readFiles(c.files, c.version)
		is := got.byDefault + ": " + strings.Join(slices.Sorted(maps.Keys(got.runtimes)), " ")
		check.That(t, err == nil && is == c.want, "%s: %s, want %s: %v", name, is, c.want, err)
	}
	// An entry replaces one of the same name as a whole.
	got, err := readFiles(crioFiles("/a", crioPackaged, "/b", "[crio.runtime.runtimes.crun]\nruntime_path = \"/x\"\n"), "1.33.0")
	check.That(t, err == nil && len(got.runtimes["crun"]) == 1 && got.from["crun"] == "/b" && got.from["runc"] == "/a", "%v: %v", got, err)
	for what, files := range map[string][]facts.File{"line 1": crioFiles("/a", "x"), "not a table": crioFiles("/a", "[crio.runtime.runtimes]\nx = 1\n")} {
		_, err := readFiles(files, "1.33.0")
		check.That(t, err != nil && strings.Contains(err.Error(), what), "%s: %v", what, err)
	}

	ctk := crioFiles("/etc/crio/crio.conf.d/99-nvidia.toml", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/bin/nvidia-container-runtime\"\n")
	for version, refused := range map[string]bool{"1.24.6": true, "1.26.0": false} {
		_, err := editFile(ctk, version, engine.Handler{
			Name:    "nvidia",
			Binary:  engine.Binary,
			Default: true,
		}, "/etc/crio/crio.conf.d/99-gpuadm.conf", nil)
		unread := Configured(facts.Engine{Files: ctk, Version: version}).Unread
		check.That(t, (err != nil) == refused && (len(unread) > 0) == refused && (err == nil || strings.Contains(err.Error(), "as /etc/crio/crio.conf.d/99-nvidia.toml has")), "nvidia-ctk's default on %s: %v, %v", version, err, unread)
	}

	_, err = readFiles(nil, "1.22.5")
	check.That(t, err != nil && strings.Contains(err.Error(), "1.23 and newer"), "CRI-O 1.22: %v", err)
}

func TestEditCRIO(t *testing.T) {
	const own = crioFolder + "/" + dropIn
	h := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	byDefault := engine.Handler{
		Name:    "nvidia",
		Binary:  engine.Binary,
		Default: true,
	}
	crun := "runtime_path = \"" + engine.Binary + "\"\nallowed_annotations = [\"io.containers.trace-syscall\"]\nmonitor_path = \"/usr/libexec/crio/conmon\"\nruntime_root = \"/run/crun\"\nruntime_type = \"oci\"\n"
	plain := "runtime_path = \"" + engine.Binary + "\"\nruntime_root = \"/run/RUNTIME\"\nruntime_type = \"oci\"\n"
	head := "[crio.runtime.runtimes.nvidia]\n"
	for name, c := range map[string]struct {
		version string
		files   []facts.File
		h       engine.Handler
		found   string
		want    string // of the drop-in; "" = none
		err     string
	}{
		"as packaged":                {"1.33.6", crioFiles(crioFolder+"/10-crio.conf", crioPackaged), h, "", head + crun, ""},
		"nothing, 1.30":              {"1.30.0", nil, h, "", head + strings.ReplaceAll(plain, "RUNTIME", "runc"), ""},
		"nothing, 1.33":              {"1.33.0", nil, h, "", head + strings.ReplaceAll(plain, "RUNTIME", "crun"), ""},
		"a VM is the default":        {"1.33.0", crioFiles("/etc/crio/crio.conf", crioKata), h, "", head + strings.ReplaceAll(plain, "RUNTIME", "crun"), ""},
		"the default":                {"1.33.6", crioFiles(crioFolder+"/10-crio.conf", crioPackaged), byDefault, "", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n\n" + head + crun, ""},
		"the operator's":             {"1.33.6", crioFiles(crioFolder+"/99-nvidia.conf", crioOperator), h, "", "", ""},
		"the operator's, as default": {"1.33.6", crioFiles(crioFolder+"/99-nvidia.conf", crioOperator), byDefault, "", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n", ""},
		"another program":            {"1.33.6", nil, h, head + "runtime_path = \"/old\"\nx = 1\n", head + "runtime_path = \"" + engine.Binary + "\"\nx = 1\n", ""},
		"inherits":                   {"1.33.6", nil, h, head + "runtime_path = \"" + engine.Binary + "\"\ninherit_default_runtime = true\n", head + "runtime_path = \"" + engine.Binary + "\"\n", ""},
		"runc would go":              {"1.25.1", nil, byDefault, "", "", "would forget the runtime runc"},
		"runc has gone before":       {"1.25.1", crioFiles("/etc/crio/crio.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_root = \"/run/crun\"\n"), byDefault, "", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n\n" + head + strings.ReplaceAll(plain, "RUNTIME", "crun"), ""},
		"a later file":               {"1.33.6", crioFiles(crioFolder+"/zz.conf", "[crio.runtime]\ndefault_runtime = \"runc\"\n[crio.runtime.runtimes.runc]\n"), byDefault, "", "", "default: " + crioFolder + "/zz.conf, which CRI-O reads after " + crioFolder},
	} {
		var found []byte
		if c.found != "" {
			found = []byte(c.found)
		}
		got, err := editFile(c.files, c.version, c.h, own, found)
		if c.err != "" {
			trouble := (*trouble.Error)(nil)
			check.That(t, errors.As(err, &trouble) && strings.Contains(trouble.What, c.err) && len(trouble.Try) > 0, "%s: %v, want %q", name, err, c.err)
			continue
		}

		if err != nil || strings.ReplaceAll(string(got), "\n  ", "\n") != c.want {
			t.Errorf("%s:\n%s\nwant\n%s\n%v", name, got, c.want, err)
			continue
		}
		again, err := editFile(c.files, c.version, c.h, own, got)
		check.That(t, err == nil && bytes.Equal(again, got), "%s: a second edit: %s %v", name, again, err)
	}
}

// The drop-in is read where its name is, folder by folder, as filepath.Walk goes.
func TestCRIOOrder(t *testing.T) {
	files := crioFiles("/etc/crio/crio.conf", "", crioFolder+"/10-crio.conf", "", crioFolder+"/99-a/x.conf", "", crioFolder+"/99-nvidia.conf", "")
	var got []string
	for _, f := range withFile(files, crioFolder+"/99-gpuadm.conf", []byte("x")) {
		got = append(got, strings.TrimPrefix(f.Path, crioFolder+"/"))
	}
	check.That(t, strings.Join(got, " ") == "/etc/crio/crio.conf 10-crio.conf 99-a/x.conf 99-gpuadm.conf 99-nvidia.conf", "%v", got)
	if got := withFile(files, crioFolder+"/10-crio.conf", nil); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

// TestTakeOutKeepsTheDefault: another process has made gpuadm's handler the default. Without the
// handler CRI-O does not start, so an undo leaves it.
func TestTakeOutKeepsTheDefault(t *testing.T) {
	h := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	after := must.Get(editFile(nil, "1.33.6", h, crioFolder+"/"+dropIn, nil))(t)
	found := append([]byte("[crio.runtime]\ndefault_runtime = \"nvidia\"\n\n"), after...)

	rest, left, err := engine.TakeOut(nil, after, found)
	must.OK(t, err)
	check.Equal(t, string(rest), string(found), "the file becomes")
	check.Has(t, strings.Join(left, "\n"), "crio.runtime.runtimes.nvidia is there (line 4), as the default runtime", "left:")
}

// What `crio config` prints before and after. Its form is that of pkg/config/template.go: CRI-O's
// own table of runtimes is not printed.
func TestJudgeCRIO(t *testing.T) {
	h := engine.Handler{Name: "nvidia", Binary: engine.Binary}
	const top = "[crio]\n[crio.runtime]\npids_limit = -1\n"
	crun := "[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/bin/crun\"\n"
	ours := "[crio.runtime.runtimes.nvidia]\nruntime_path = \"" + engine.Binary + "\"\ninherit_default_runtime = false\n"
	for name, c := range map[string]struct {
		was, is string
		h       engine.Handler
		err     string
	}{
		"added":                  {top + crun, top + crun + ours, h, ""},
		"its own comes to sight": {top, top + crun + ours, h, ""},
		"crun is lost":           {top + crun, top + ours, h, "crun"},
		"crun is another":        {top + crun, top + strings.ReplaceAll(crun, "/usr/bin", "/opt") + ours, h, "crun"},
		"not there":              {top + crun, top + crun, h, "would not be there"},
		"runs the default":       {top, top + strings.ReplaceAll(ours, "false", "true"), h, "would not run"},
		"another setting":        {top, "[crio.runtime]\npids_limit = 1\n" + ours, h, "pids_limit"},
		"a default not asked":    {top, top + "default_runtime = \"nvidia\"\n" + ours, h, "default_runtime"},
		"a default asked":        {top, top + "default_runtime = \"nvidia\"\n" + ours, engine.Handler{Name: "nvidia", Binary: engine.Binary, Default: true, CDI: true}, ""},
		"for people":             {"{", "{", h, ""},
	} {
		err := compareDumps([]byte(c.was), []byte(c.is), c.h)
		check.That(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)), "%s: %v, want %q", name, err, c.err)
	}
}

// FuzzEditCRIO holds for any file of others: no panic, no runtime is lost or changed, a second edit
// changes nothing, and taking the edit out beside another one leaves nothing of it.
func FuzzEditCRIO(f *testing.F) {
	for _, text := range []string{"", crioPackaged, crioKata, crioOperator, "crio.runtime.runtimes.nvidia.runtime_path = 'x'"} {
		f.Add([]byte(text), byte(0))
		f.Add([]byte(text), byte(3))
	}

	f.Fuzz(func(t *testing.T, text []byte, choice byte) {
		own := crioFolder + "/" + dropIn
		files := []facts.File{{Path: "/etc/crio/crio.conf"}, {
			Path: crioFolder + "/10-x.conf",
			Data: text,
		}}
		version := []string{"1.24.0", "1.30.0", "1.33.0", ""}[choice/2%4]
		h := engine.Handler{
			Name:    "nvidia",
			Binary:  engine.Binary,
			Default: choice%2 == 1,
		}
		before, err := readFiles(files, version)
		if err != nil {
			return
		}
		out, err := editFile(files, version, h, own, nil)
		if err != nil {
			if strings.Contains(err.Error(), "internal error") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}

		after, err := readFiles(withFile(files, own, out), version)
		if err != nil || after.runtimes["nvidia"] == nil || h.Default && after.byDefault != "nvidia" {
			t.Fatalf("%q with %q: %v %v", text, out, after, err)
		}
		for name, entry := range before.runtimes {
			if is := after.runtimes[name]; !toml.Equal(is, entry) {
				t.Fatalf("%s was %v, is %v", name, entry, is)
			}
		}

		if again, err := editFile(withFile(files, own, out), version, h, own, out); err != nil || !bytes.Equal(again, out) {
			t.Fatalf("a second edit: %q, then %q, %v", out, again, err)
		}
		if out == nil {
			return
		}
		theirs := "[crio.image]\npause_image = \"x\"\n"
		rest, left, err := engine.TakeOut(nil, out, append(append(slices.Clone(out), '\n'), theirs...))
		if err != nil || len(left) > 0 || strings.TrimSpace(string(rest)) != strings.TrimSpace(theirs) {
			t.Fatalf("%q taken out beside others: %q, left %q, %v", out, rest, left, err)
		}
	})
}
