// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a program of the control plane.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// spawn starts a program in the cluster's network. It ends with this process, whatever happens to
// that.
func (c *Cluster) spawn(path string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(path), ended: make(chan struct{})}
	p.log = filepath.Join(c.dir, p.name+".log")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("cannot make a log file: %w", err)
	}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, c.dir
	// The signal comes when the thread ends that started it: prctl(2), PR_SET_PDEATHSIG.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is in another network
		defer close(p.ended)
		defer log.Close()
		err := c.network.enter()
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", p.name, err)
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// stop ends a program: at once, as nothing of it is kept.
func (p *process) stop() error {
	_ = p.cmd.Process.Kill() // it may have ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("cannot end %s", p.name)
	}
}

// lastOutput is the end of a program's output.
func (p *process) lastOutput() string {
	text, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// run starts the programs, and waits for each as the next needs it.
func (c *Cluster) run(ctx context.Context, parts Parts) error {
	etcd := []string{
		"--name=lab", "--data-dir=" + filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", // nothing here outlives a power cut
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=lab=http://127.0.0.1:2380", "--log-level=warn",
	}
	if _, err := c.spawn(parts.Path("etcd"), etcd...); err != nil {
		return err
	}
	if err := os.WriteFile(c.file(auditPolicy), []byte(auditRules), 0o600); err != nil {
		return fmt.Errorf("cannot write the audit policy: %w", err)
	}
	if err := c.serveReviews(); err != nil {
		return err
	}
	server := parts.Path("kube-apiserver")
	if c.release != "" {
		older, err := apiserverOf(ctx, c.release)
		if err != nil {
			return err
		}
		server = older
	}

	apiserver, err := c.spawn(server, append(c.apiserver(), c.flags...)...)
	if err != nil {
		return err
	}
	if err := c.wait(ctx, apiserver, "the API server is ready", func(ctx context.Context) error {
		_, err := c.Admin.Get(ctx, "/readyz")
		return err
	}); err != nil {
		return err
	}

	kcm, err := c.identity("kube-controller-manager", "system:kube-controller-manager")
	if err != nil {
		return err
	}
	if c.signed != 0 {
		kcm = append(kcm, "--cluster-signing-duration="+c.signed.String())
	}
	controllers, err := c.spawn(parts.Path("kube-controller-manager"), append(kcm, "--use-service-account-credentials",
		"--root-ca-file="+c.file("ca.crt"), "--service-account-private-key-file="+c.file("sa.key"),
		"--cluster-signing-cert-file="+c.file("ca.crt"), "--cluster-signing-key-file="+c.file("ca.key"),
		// Tests make an account's token for a pod of a node that is still to come: the collector
		// would take that pod after 40 s.
		"--controllers=*,bootstrapsigner,tokencleaner,-pod-garbage-collector-controller")...)
	if err != nil {
		return err
	}
	scheduler, err := c.identity("kube-scheduler", "system:kube-scheduler")
	if err != nil {
		return err
	}
	if _, err := c.spawn(parts.Path("kube-scheduler"), scheduler...); err != nil {
		return err
	}
	return c.wait(ctx, controllers, "the controllers work", func(ctx context.Context) error {
		_, err := c.Admin.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
		return err
	})
}

// apiserver are the API server's arguments: as kubeadm's, with the addresses of this network.
func (c *Cluster) apiserver() []string {
	return []string{
		"--bind-address=0.0.0.0", "--secure-port=" + port, "--advertise-address=" + address,
		"--etcd-servers=http://127.0.0.1:2379", "--client-ca-file=" + c.file("ca.crt"),
		"--tls-cert-file=" + c.file("apiserver.crt"), "--tls-private-key-file=" + c.file("apiserver.key"),
		"--kubelet-client-certificate=" + c.file("kubelet-client.crt"), "--kubelet-client-key=" + c.file("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.file("sa.pub"), "--service-account-signing-key-file=" + c.file("sa.key"),
		"--service-cluster-ip-range=" + services, "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--authentication-token-webhook-config-file=" + c.file(reviewConfig), "--authentication-token-webhook-version=v1",
		"--enable-bootstrap-token-auth=true", "--anonymous-auth=true", "--profiling=false",
		"--audit-policy-file=" + c.file(auditPolicy), "--audit-log-path=" + c.file(auditLog),
	}
}

// identity makes a controller's kubeconfig, and the arguments that name it.
func (c *Cluster) identity(name, user string) ([]string, error) {
	cert, err := c.keys.certify(user)
	if err != nil {
		return nil, err
	}
	text, err := c.kubeconfig("https://127.0.0.1:"+port, &cert, "")
	if err != nil {
		return nil, err
	}
	place := c.file(name + ".kubeconfig")
	if err := os.WriteFile(place, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("cannot write a kubeconfig: %w", err)
	}
	return []string{
		"--kubeconfig=" + place, "--authentication-kubeconfig=" + place, "--authorization-kubeconfig=" + place,
		"--bind-address=127.0.0.1", "--leader-elect=false",
	}, nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// wait asks until there is no error, or the program it depends on has ended.
func (c *Cluster) wait(ctx context.Context, p *process, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("cannot wait until %s: %s has ended: %s", what, p.name, p.lastOutput())
		case <-ctx.Done():
			return fmt.Errorf("cannot wait until %s: %w: %s said\n%s", what, err, p.name, p.lastOutput())
		case <-time.After(30 * time.Millisecond):
		}
	}
}
