package main

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storage "k8s.io/api/storage/v1"
	errors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// topologyOf names a node as the driver does.
func topologyOf(driver, node string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{driver + "/node": node}}
}

// tellCapacity tells the scheduler how much room each class has on each node, without which it puts no pod there.
func (p *provisioner) tellCapacity(ctx context.Context, namespace string) error {
	classes, err := p.cluster.StorageV1().StorageClasses().List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	nodes, err := p.cluster.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	for _, class := range classes.Items {
		for _, node := range nodes.Items {
			if class.Provisioner != p.name {
				continue
			}
			if err := p.tellOne(ctx, namespace, class, node.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *provisioner) tellOne(ctx context.Context, namespace string, class storage.StorageClass, node string) error {
	topology := topologyOf(p.name, node)
	room, err := p.driver.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: class.Parameters, AccessibleTopology: topology})
	if err != nil {
		return err
	}
	all := p.cluster.StorageV1().CSIStorageCapacities(namespace)
	capacity := &storage.CSIStorageCapacity{
		ObjectMeta:       meta.ObjectMeta{Name: class.Name + "-" + node, Namespace: namespace},
		StorageClassName: class.Name,
		NodeTopology:     &meta.LabelSelector{MatchLabels: topology.GetSegments()},
		Capacity:         resource.NewQuantity(room.GetAvailableCapacity(), resource.BinarySI),
	}
	if _, err = all.Create(ctx, capacity, meta.CreateOptions{}); !errors.IsAlreadyExists(err) {
		return err
	}
	found, err := all.Get(ctx, capacity.Name, meta.GetOptions{})
	if err != nil || found.Capacity.Cmp(*capacity.Capacity) == 0 {
		return err
	}
	found.Capacity = capacity.Capacity
	_, err = all.Update(ctx, found, meta.UpdateOptions{})
	return err
}
