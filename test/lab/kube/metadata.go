// SPDX-License-Identifier: Apache-2.0

package kube

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// Cloud is the one that a host is in: what its firmware says of it, its metadata service, and its
// API.
type Cloud struct {
	cloudfake.Setup
	// After is how long after each start the metadata service refuses connections, as one does
	// before its route is there.
	After time.Duration
}

// Where a host keeps its cloud, which is not part of the machine: tests that look for secrets leave
// it out.
const (
	cloudDir  = "/srv/cloud"
	cloudProg = "/usr/lib/gpuadm-lab/cloud"
	cloudUnit = "gpuadm-lab-cloud.service"
	cloudSaid = cloudDir + "/requests"
	// apiAddress is where AWS's APIs are: another address of the loopback interface, by their names
	// in /etc/hosts.
	apiAddress = "127.0.10.1"
	bundle     = "/etc/ssl/certs/ca-certificates.crt" // what the package ca-certificates makes, and Go's programs read
)

//go:embed testdata/cloud.service
var cloudService string

// Cloud puts a host into a cloud, now and at each boot: its firmware names it, 169.254.169.254
// answers, and so do AWS's APIs by their names, with certificates that the host trusts. A second
// call changes what is said. The cluster takes the tokens of an AWS machine for its node, if no
// other machine has a cluster of that name.
//
// All of it is in the host's own network, and so seen by this host and its pods alone.
func (n *Node) Cloud(c Cloud) {
	n.t.Helper()
	text := must.Get(json.MarshalIndent(c.Setup, "", "  "))(n.t)
	n.Put(cloudDir+"/setup.json", string(text), 0o600)
	n.Must("rm", "-rf", cloudDir+"/firmware")
	for name, output := range firmware(c.Setup) {
		n.Put(cloudDir+"/firmware/dmi/id/"+name, output+"\n", 0o444)
	}
	if !n.clouded {
		n.clouded = true
		n.trust(c.Machine.Region)
		program := must.Get(n.t.clouds.get())(n.t)
		n.Put(cloudProg, program, 0o755)
		n.t.Cleanup(func() {
			if n.t.Failed() {
				n.t.Logf("what %s asked its cloud last:\n%s%s", n.Name, n.Exec("tail", "-n", "40", cloudSaid).Stdout, n.Exec("journalctl", "--no-pager", "--lines=5", "--unit="+cloudUnit).Stdout)
			}
		})
	}

	n.Put("/etc/systemd/system/"+cloudUnit, fmt.Sprintf(cloudService, cloudDir, cloudProg, c.After, apiAddress, cloudSaid), 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", cloudUnit)
	n.Must("systemctl", "restart", cloudUnit)
	if c.Setup.Cloud == "aws" {
		n.t.reviews.add(c.Fake())
	}
	n.serves(c)
}

// serves waits until what the host is to meet at once answers.
func (n *Node) serves(c Cloud) {
	n.t.Helper()
	doors := []string{apiAddress + "/443"}
	if c.After == 0 {
		doors = append(doors, "169.254.169.254/80")
	}
	for _, door := range doors {
		n.t.Until(n.Name+"'s cloud answers", func() string {
			if r := n.Exec("bash", "-c", "echo > /dev/tcp/"+door); r.Exit != 0 {
				return r.Stderr
			}
			return ""
		})
	}
}

// Asked are the requests that the host's cloud has had so far, in cloudfake's words. What was asked
// a moment ago may be missing yet.
func (n *Node) Asked() []string {
	n.t.Helper()
	return strings.FieldsFunc(n.Get(cloudSaid), func(r rune) bool { return r == '\n' })
}

// firmware is what the files of /sys/class/dmi/id say on a cloud's machine.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html,
// https://cloud.google.com/compute/docs/instances/detect-compute-engine, and cloud-init's
// tools/ds-identify for Azure.
func firmware(s cloudfake.Setup) map[string]string {
	switch s.Cloud {
	case "aws":
		return map[string]string{
			"sys_vendor": "Amazon EC2", "bios_vendor": "Amazon EC2", "board_vendor": "Amazon EC2", "chassis_vendor": "Amazon EC2",
			"product_name": s.Machine.Type, "board_asset_tag": s.Machine.ID, "chassis_asset_tag": "Amazon EC2", "bios_version": "1.0",
		}
	case "gce":
		return map[string]string{"sys_vendor": "Google", "bios_vendor": "Google", "product_name": "Google Compute Engine", "bios_version": "Google"}
	case "azure":
		return map[string]string{
			"sys_vendor": "Microsoft Corporation", "bios_vendor": "Microsoft Corporation", "product_name": "Virtual Machine",
			"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
		}
	}
	return nil
}

// trust has the host take the certificates of the cloud's APIs, and find them by their names.
func (n *Node) trust(region string) {
	n.t.Helper()
	ca := must.Get(newAuthority("a cloud"))(n.t)
	key, err := keyPEM(ca.key)
	must.OK(n.t, err)
	n.Put(cloudDir+"/ca.crt", string(ca.pem), 0o644)
	n.Put(cloudDir+"/ca.key", string(key), 0o600)
	n.Put(bundle, n.Exec("cat", bundle).Stdout+string(ca.pem), 0o644) // where the distribution has none, it is all that is trusted
	hosts := n.Get("/etc/hosts") + "169.254.169.254 metadata.google.internal metadata\n"
	for _, service := range []string{"eks", "ec2", "sts"} {
		for _, domain := range []string{".amazonaws.com", ".api.aws"} {
			hosts += apiAddress + " " + service + "." + region + domain + "\n"
		}
	}

	n.Put("/etc/hosts", hosts, 0o644)
}

// server is the command test/cloudfake/serve, which is built once. The build cache makes it a
// matter of a second.
type server struct {
	once    sync.Once
	program string
	err     error
}

func (s *server) get() (string, error) {
	s.once.Do(func() { s.program, s.err = buildServer() })
	return s.program, s.err
}

func buildServer() (string, error) {
	dir, err := os.MkdirTemp("", "gpuadm-cloud-")
	if err != nil {
		return "", fmt.Errorf("cannot build the fake cloud: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "serve")
	cmd := exec.Command("go", "build", "-C", lab.Source(), "-trimpath", "-ldflags=-s -w", "-o", out, "./test/cloudfake/serve")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the fake cloud: %w: %s", err, output)
	}
	data, err := os.ReadFile(out)
	return string(data), err
}
