// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

/* A kernel module that says of itself what NVIDIA's open one says, and drives nothing. nvidia.gpus=1 on the kernel's command line is
   a machine with GPUs. */

#include <linux/errno.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "lab.h"

static bool gpus;
module_param(gpus, bool, 0444);

static int __init lab_init(void)
{
	return gpus ? 0 : -ENODEV; /* "No NVIDIA GPU found" */
}

static void __exit lab_exit(void)
{
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE(LAB_LICENSE);
MODULE_DESCRIPTION("a fake of NVIDIA's for tests");
MODULE_VERSION(LAB_VERSION);
MODULE_FIRMWARE("nvidia/" LAB_VERSION "/gsp_ga10x.bin");
MODULE_FIRMWARE("nvidia/" LAB_VERSION "/gsp_tu10x.bin");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc02i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc00i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc06sc80i00*");
