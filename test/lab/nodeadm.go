// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

// NodeadmUnits are the units of EKS's images by which a machine becomes a node, with their order and what they need.
// Source: https://github.com/awslabs/amazon-eks-ami (81fec2e8, 2026-07-23), templates/al2023/runtime/rootfs/etc/systemd/system.
func NodeadmUnits() map[string]string {
	const (
		run    = "[Service]\nType=oneshot\nExecStart=/usr/bin/nodeadm init "
		cache  = " --config-cache /run/eks/nodeadm/config.json\nStandardError=journal+console\n"
		wanted = "[Install]\nWantedBy=multi-user.target\n"
	)
	return map[string]string{
		"nodeadm-config.service": "[Unit]\nBefore=cloud-init.service\nAfter=systemd-networkd-wait-online.service\n" +
			run + "--skip run --config-source imds://user-data" + cache + wanted,
		"nodeadm-run.service": "[Unit]\nAfter=nodeadm-config.service cloud-final.service\nRequires=nodeadm-config.service\n" +
			run + "--skip config --config-source imds://user-data --config-source file:///etc/eks/nodeadm.d/" + cache + wanted,
		"kubelet.service": "[Unit]\nAfter=containerd.service\nWants=containerd.service\n[Service]\nSlice=runtime.slice\nEnvironmentFile=/etc/eks/kubelet/environment\n" +
			"ExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS\nRestart=on-failure\nRestartForceExitStatus=SIGPIPE\nRestartSec=5\nKillMode=process\n" + wanted,
		"containerd.service.d/00-runtime-slice.conf": "[Service]\nSlice=runtime.slice\n",
	}
}
