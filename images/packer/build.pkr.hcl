# SPDX-License-Identifier: Apache-2.0

build {
  sources = ["source.amazon-ebs.node", "source.googlecompute.node", "source.azure-arm.node"]

  # cloud-init installs packages at the first boot, and apt has one lock.
  provisioner "shell" {
    inline = ["cloud-init status --wait"]
  }

  provisioner "file" {
    source      = var.deb
    destination = "/tmp/gpuadm.deb"
  }

  provisioner "file" {
    source      = "${path.root}/node.toml"
    destination = "/tmp/node.toml"
  }

  provisioner "shell" {
    script           = "${path.root}/provision.sh"
    environment_vars = ["GPU=${var.gpu}"]
    execute_command  = "chmod +x {{ .Path }}; sudo {{ .Vars }} {{ .Path }}"
  }

  # Azure takes an image of a machine that has forgotten its user.
  provisioner "shell" {
    only            = ["azure-arm.node"]
    inline          = ["/usr/sbin/waagent -force -deprovision+user"]
    execute_command = "chmod +x {{ .Path }}; sudo sh {{ .Path }}"
  }
}
