// SPDX-License-Identifier: Apache-2.0

// Command devplug is a device plugin without devices: kubelet counts names, and a container that
// asks for some gets their names in its environment. It registers again whenever kubelet has
// restarted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pause is between two checks whether kubelet runs.
const pause = 100 * time.Millisecond

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	name    string
	devices []*v1beta1.Device
}

func main() {
	name := flag.String("name", "nvidia.com/gpu", "what the devices are called")
	count := flag.Int("n", 8, "how many there are")
	ids := flag.String("ids", "", "what each is called, with commas between, in the place of -n; NVIDIA's plugin gives UUIDs")
	dir := flag.String("dir", v1beta1.DevicePluginPath, "kubelet's folder of sockets")
	flag.Parse()
	p := &plugin{name: *name}
	names := strings.Split(*ids, ",")
	if *ids == "" {
		names = nil
		for i := range *count {
			names = append(names, fmt.Sprintf("GPU-%d", i))
		}
	}

	for _, id := range names {
		p.devices = append(p.devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	message := ""
	for {
		if err := p.serve(*dir); err.Error() != message { // it comes back when kubelet has gone
			message = err.Error()
			fmt.Println(message)
		}
		time.Sleep(pause)
	}
}

// serve registers the devices, and returns when kubelet has gone or cannot be reached: kubelet
// empties the folder when it starts. Source: Server.Start in
// pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go of Kubernetes.
func (p *plugin) serve(dir string) error {
	socket := filepath.Join(dir, "gpuadm-lab.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	defer server.Stop()
	if err := p.register(filepath.Join(dir, filepath.Base(v1beta1.KubeletSocket)), filepath.Base(socket)); err != nil {
		return err
	}
	fmt.Printf("registered %d of %s\n", len(p.devices), p.name)
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("cannot serve: %w", err)
		case <-time.After(pause):
			if _, err := os.Stat(socket); err != nil {
				return errors.New("kubelet has restarted")
			}
		}
	}
}

func (p *plugin) register(kubelet, endpoint string) error {
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("cannot reach kubelet: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: p.name, Options: &v1beta1.DevicePluginOptions{},
	})
	if err != nil {
		return fmt.Errorf("cannot register: %w", err)
	}
	return nil
}

// GetDevicePluginOptions says that kubelet need not ask before a container starts.
func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once: they do not change.
func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate gives a container the names of its devices.
func (p *plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	answer := &v1beta1.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"LAB_DEVICES": strings.Join(c.DevicesIds, ",")},
		})
	}

	return answer, nil
}
