// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"io/fs"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Put is a file that the kernel makes, or a program that a test stands for: it is not a touch of gpuadm's.
func (n *Node) Put(name, text string, mode fs.FileMode) error {
	i := &inode{attrs: attrs{mode: mode, data: []byte(text)}}
	return n.putInode(name, i)
}

// PutDevice is a character device that such a program makes.
func (n *Node) PutDevice(name string, major, minor uint32, mode fs.FileMode) error {
	i := &inode{
		attrs:  attrs{mode: mode | fs.ModeDevice | fs.ModeCharDevice},
		device: host.Device{Major: major, Minor: minor},
	}
	return n.putInode(name, i)
}

// PutLink is a symbolic link that such a program makes.
func (n *Node) PutLink(name, to string) error {
	return n.putInode(name, &inode{attrs: attrs{mode: fs.ModeSymlink | 0o777}, target: to})
}

// Drop removes a file or a folder with all below it, as Put makes one.
func (n *Node) Drop(name string) error { return n.putInode(name, nil) }

func (n *Node) putInode(name string, i *inode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	folder, err := n.folderFor(name)
	if err != nil {
		return err
	}
	if i != nil {
		i.kernel = folder.kernel
		i.ctime = n.now
		i.sync()
	}

	folder.put(path.Base(name), i)
	folder.sync()
	return nil
}

// EachGPU lets a test change what the driver says of each GPU.
func (n *Node) EachGPU(change func(*host.GPU)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, g := range n.driver.gpus {
		change(g)
	}
}
