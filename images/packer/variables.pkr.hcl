# SPDX-License-Identifier: Apache-2.0

packer {
  required_version = ">= 1.10.0"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.0"
    }
    azure = {
      source  = "github.com/hashicorp/azure"
      version = ">= 2.1.0"
    }
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1.0"
    }
  }
}

variable "deb" {
  type        = string
  description = "The file of gpuadm's package for amd64."
}

variable "gpu" {
  type        = string
  default     = "H100-80GB"
  description = "The GPUs that the image is for: gpuadm bake --gpu."
}

variable "aws_region" {
  type    = string
  default = "us-east-1"
}

variable "google_project" {
  type    = string
  default = ""
}

variable "google_zone" {
  type    = string
  default = "us-central1-a"
}

variable "azure_subscription" {
  type    = string
  default = ""
}

variable "azure_resource_group" {
  type    = string
  default = ""
}

variable "azure_location" {
  type    = string
  default = "eastus"
}

locals {
  name = "gpuadm-${formatdate("YYYYMMDD-hhmmss", timestamp())}"
}
