package kube_test

import (
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

func TestLabZZ(t *testing.T) {
	c := cluster.Run(t)
	n := c.Boot("zz", lab.Options{Dist: "bookworm"})
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Devices(8)
	n.Allocatable("nvidia.com/gpu", 8)
	for range 8 {
		pod(c, "zz", n.Name)
		c.PodReady("default", "zz")
		s := time.Now()
		n.Reboot()
		t.Log("reboot", time.Since(s))
		if time.Since(s) > 8*time.Second {
			t.Log(n.Exec("sh", "-c", "journalctl -b -1 --no-pager -o short-precise | grep -v kubelet | tail -150; journalctl --no-pager -b -u systemd-logind | tail -3").Stdout)
			t.Log(n.Console())
		}
		n.Ready()
		n.Allocatable("nvidia.com/gpu", 8)
		c.Delete("/api/v1/namespaces/default/pods/zz?gracePeriodSeconds=0")
		c.Until("gone", func() string {
			if c.Look("/api/v1/namespaces/default/pods/zz") != nil {
				return "there"
			}
			return ""
		})
	}
}
