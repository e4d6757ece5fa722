// SPDX-License-Identifier: Apache-2.0

package lab

// NodeadmUnits are the units of EKS's images by which a machine becomes a node, with their order
// and what they need.
// Source: https://github.com/awslabs/amazon-eks-ami (81fec2e8, 2026-07-23),
// templates/al2023/runtime/rootfs/etc/systemd/system.
func NodeadmUnits() map[string]string {
	const (
		config = `[Unit]
Before=cloud-init.service
After=systemd-networkd-wait-online.service
[Service]
Type=oneshot
ExecStart=/usr/bin/nodeadm init --skip run --config-source imds://user-data --config-cache /run/eks/nodeadm/config.json
StandardError=journal+console
[Install]
WantedBy=multi-user.target
`
		run = `[Unit]
After=nodeadm-config.service cloud-final.service
Requires=nodeadm-config.service
[Service]
Type=oneshot
ExecStart=/usr/bin/nodeadm init --skip config --config-source imds://user-data --config-source file:///etc/eks/nodeadm.d/ --config-cache /run/eks/nodeadm/config.json
StandardError=journal+console
[Install]
WantedBy=multi-user.target
`
		kubelet = `[Unit]
After=containerd.service
Wants=containerd.service
[Service]
Slice=runtime.slice
EnvironmentFile=/etc/eks/kubelet/environment
ExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS
Restart=on-failure
RestartForceExitStatus=SIGPIPE
RestartSec=5
KillMode=process
[Install]
WantedBy=multi-user.target
`
	)
	return map[string]string{
		"nodeadm-config.service":                     config,
		"nodeadm-run.service":                        run,
		"kubelet.service":                            kubelet,
		"containerd.service.d/00-runtime-slice.conf": "[Service]\nSlice=runtime.slice\n",
	}
}
