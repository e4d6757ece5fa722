# SPDX-License-Identifier: Apache-2.0

# A machine without a GPU is enough, and costs little: the driver is built and installed, not loaded.
source "amazon-ebs" "node" {
  region        = var.aws_region
  instance_type = "c6i.xlarge"
  ssh_username  = "ubuntu"
  ami_name      = local.name

  source_ami_filter {
    owners      = ["099720109477"] # Canonical
    most_recent = true
    filters = {
      name                = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_size           = 30
    volume_type           = "gp3"
    delete_on_termination = true
  }
}
