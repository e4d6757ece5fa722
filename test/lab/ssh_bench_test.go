// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestBenchSSH prints how long 30 logins take that each copy gpuadm, run it and remove it: by gpuadm ssh, by ssh in a loop, and by
// ansible as its documentation says (copy, command, file), with as many forks. Ten names each lead to one of three hosts, since
// thirty hosts are too many for one machine. The figures are not judged here; that each says 30 answers is.
func TestBenchSSH(t *testing.T) {
	lab.Asked(t)
	o := newOffice(t, 3)
	names, config := []string{}, &strings.Builder{}
	for i := range 30 {
		names = append(names, fmt.Sprintf("m%02d", i))
		fmt.Fprintf(config, "Host m%02d\n  HostName 10.201.0.%d\n", i, 11+i%3)
	}
	o.Put("/root/.ssh/config", config.String()+"Host *\n  User root\n  StrictHostKeyChecking yes\n", 0o600)
	o.Put("/root/inventory", strings.Join(names, "\n")+"\n", 0o644)
	o.Put("/root/play.yaml", `- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy: {src: /usr/local/sbin/gpuadm, dest: "/root/{{ inventory_hostname }}", mode: "0700"}
    - ansible.builtin.command: "/root/{{ inventory_hostname }} facts -o json"
    - ansible.builtin.file: {path: "/root/{{ inventory_hostname }}", state: absent}
`, 0o644)
	took := func(answers string, argv ...string) time.Duration {
		began := time.Now()
		r := o.Exec(argv...)
		if n := strings.Count(r.Stdout, answers); r.Exit != 0 || n != 30 {
			t.Errorf("%s: %d answers, want 30: %s", argv[0], n, r)
		}
		return time.Since(began)
	}
	const loop = `for h in $(cat /root/inventory); do scp -q /usr/local/sbin/gpuadm $h:/root/$h && ssh $h /root/$h facts -o json && ssh $h rm /root/$h; done`
	gpuadm := took(`"live":true`, slices.Concat([]string{"gpuadm", "ssh"}, names, []string{"--", "facts", "-o", "json"})...)
	shell := took(`"live":true`, "sh", "-c", loop)
	ansible := took(`unreachable=0    failed=0`, "ansible-playbook", "-i", "/root/inventory", "--forks", "16", "/root/play.yaml")
	times := func(other time.Duration) float64 { return other.Seconds() / gpuadm.Seconds() }
	t.Logf("30 logins: gpuadm ssh %.1f s; ssh in a loop %.1f s, %.1f times; ansible %.1f s, %.1f times",
		gpuadm.Seconds(), shell.Seconds(), times(shell), ansible.Seconds(), times(ansible))
}
