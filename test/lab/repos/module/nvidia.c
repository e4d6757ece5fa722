// SPDX-License-Identifier: Apache-2.0

/* A kernel module that says of itself what NVIDIA's open one says, and drives nothing. nvidia.gpus=1 on the kernel's command line is
   a machine with GPUs: then it is loaded, and says which it is in /proc/driver/nvidia/version, in the words of nv_procfs_read_version
   (kernel-open/nvidia/nv-procfs.c and kernel-open/common/inc/nv.h in https://github.com/NVIDIA/open-gpu-kernel-modules). */

#include <linux/errno.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/string.h>

#include "lab.h"

static bool gpus;
module_param(gpus, bool, 0444);

static struct proc_dir_entry *dir;

static int version(struct seq_file *s, void *unused)
{
	const char *open = strcmp(LAB_LICENSE, "NVIDIA") ? "Open " : "";

	seq_printf(s, "NVRM version: NVIDIA UNIX %sKernel Module for x86_64  %s  Release Build  (lab)\n", open, LAB_VERSION);
	return 0;
}

static int __init lab_init(void)
{
	if (!gpus)
		return -ENODEV; /* "No NVIDIA GPU found" */
	dir = proc_mkdir("driver/nvidia", NULL);
	if (!dir || !proc_create_single("version", 0444, dir, version)) {
		proc_remove(dir);
		return -ENOMEM;
	}
	return 0;
}

static void __exit lab_exit(void)
{
	proc_remove(dir);
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
