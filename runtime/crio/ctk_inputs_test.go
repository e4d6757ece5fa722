// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"os"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A ctkInput is a configuration as the world has it, which gpuadm and nvidia-ctk both edit.
type ctkInput struct {
	name, version string
	files         []facts.File // in the engine's order; none: the machine has no file
	ownFile       bool         // nvidia-ctk edits crio.conf itself: its --drop-in-config= is empty
}

// dockerInputs are files of Docker 26.1, which reads features.cdi.
func dockerInputs(t *testing.T) []ctkInput {
	all := []ctkInput{
		{name: "missing"}, // test/hosts/debian13-docker.txtar
		recordedInput(t, "docker-only"),
	}
	for _, c := range [][2]string{
		// dockerd takes a file without a byte: getConflictFreeConfiguration in daemon/config/config.go of https://github.com/moby/moby.
		{"empty file", ""},
		{"empty object", `{}
`},
		// Keys and values of the full example in docs/reference/dockerd.md of https://github.com/docker/cli.
		{"typical", `{
  "data-root": "/var/lib/docker",
  "default-address-pools": [
    {
      "base": "172.30.0.0/16",
      "size": 24
    },
    {
      "base": "172.31.0.0/16",
      "size": 24
    }
  ],
  "live-restore": true,
  "log-driver": "json-file",
  "log-opts": {
    "max-file": "5",
    "max-size": "10m"
  }
}
`},
		// The same example as docs/reference/commandline/dockerd.md has it in older versions: with tabs.
		{"tabs", `{
	"max-concurrent-downloads": 3,
	"max-concurrent-uploads": 5,
	"debug": true,
	"hosts": [],
	"log-level": "",
	"default-ulimits": {}
}
`},
		// A limit has the form that the example has; its type is int64: Ulimit in ulimit.go of https://github.com/docker/go-units.
		{"big integer", `{
  "default-ulimits": {
    "memlock": {
      "Hard": 9223372036854775807,
      "Name": "memlock",
      "Soft": 9223372036854775807
    }
  }
}
`},
		// "unknown-option" is the key that the text on --validate there has.
		{"unknown keys", `{
  "unknown-option": {
    "z": 1,
    "a": [1, 2]
  },
  "bip": ""
}
`},
		// The runtimes of that full example, and its default.
		{"other runtimes", `{
  "default-runtime": "runc",
  "runtimes": {
    "cc-runtime": {
      "path": "/usr/bin/cc-runtime"
    },
    "custom": {
      "path": "/usr/local/bin/my-runc-replacement",
      "runtimeArgs": [
        "--debug"
      ]
    }
  }
}
`},
		// README.md of https://github.com/NVIDIA/k8s-device-plugin in its versions for Docker.
		{"owner's nvidia", `{
    "default-runtime": "nvidia",
    "runtimes": {
        "nvidia": {
            "path": "/usr/bin/nvidia-container-runtime",
            "runtimeArgs": []
        }
    }
}
`},
		// https://gist.github.com/ZekunZh/84cc41df085a2f6631b94d316fbf1f62.
		{"features and nvidia", `{
    "graph": "/data/docker",
    "storage-driver": "overlay2",
    "runtimes": {
        "nvidia": {
            "path": "nvidia-container-runtime",
            "runtimeArgs": []
        }
    },
    "features": {
        "buildkit": true
    }
}
`},
		// integration/container/cdi_test.go of https://github.com/moby/moby: "CDI explicitly disabled".
		{"CDI off", `{"features": {"cdi": false}}`},
		// The comma after no-proxy is in that full example of Docker's own documentation.
		{"invalid JSON", `{
  "proxies": {
    "http-proxy": "http://proxy.example.com:80",
    "no-proxy": "*.test.example.com,.example.org",
  }
}
`},
	} {
		all = append(all, ctkInput{name: c[0], files: []facts.File{{Path: ctkDaemonJSON, Data: []byte(c[1])}}})
	}
	for i := range all {
		all[i].version = "26.1.5"
	}
	return all
}

// crioInputs are files of CRI-O.
func crioInputs(t *testing.T) []ctkInput {
	read := func(name string) string {
		data := must.Get(os.ReadFile("testdata/ctk/" + name))(t)
		return string(data)
	}
	// An excerpt of roles/container-engine/cri-o/templates/crio.conf.j2 of https://github.com/kubernetes-sigs/kubespray, filled in with
	// crun as the default.
	kubespray := crioFiles("/etc/crio/crio.conf", read("kubespray-crio.conf"))
	return []ctkInput{
		{name: "missing 1.33", version: "1.33.6"},
		recordedInput(t, "rocky9-crio"),
		recordedInput(t, "rocky9-crio125"),
		// templates/master/01-master-container-runtime/_base/files/crio.yaml of https://github.com/openshift/machine-config-operator,
		// without what depends on the cluster.
		{name: "OpenShift", version: "1.33.6", files: crioFiles(crioFolder+"/00-default", read("openshift-00-default"))},
		{name: "Kubespray", version: "1.33.6", files: kubespray},
		{name: "Kubespray, own file", version: "1.33.6", files: kubespray, ownFile: true},
		// contrib/bundle/10-crun.conf of https://github.com/cri-o/cri-o.
		{name: "bundle's crun", version: "1.28.4", files: crioFiles(crioFolder+"/10-crun.conf",
			"[crio.runtime]\ndefault_runtime = \"crun\"\n\n[crio.runtime.runtimes.crun]\n")},
	}
}

// recordedInput is the engine of a recorded machine that gpuadm configures.
func recordedInput(t *testing.T, name string) ctkInput {
	t.Helper()
	archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
	n := must.Get(simhost.New(archive))(t)
	f := must.Get(facts.Gather(t.Context(), n.View(), facts.Needs{}))(t)
	for _, e := range f.Engines {
		if e.Name != "containerd" {
			return ctkInput{name: name, version: e.Version, files: e.Files}
		}
	}
	t.Fatalf("%s has no such engine", name)
	return ctkInput{}
}
